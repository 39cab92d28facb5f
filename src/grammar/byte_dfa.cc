#include "grammar/byte_dfa.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"

namespace nanovllm::grammar {
namespace {

// What is left of a sequence.
struct Tail {
  const ByteStep* at;
  const ByteStep* end;
};

class DfaBuilder {
 public:
  uint16_t state(const std::vector<Tail>& tails) {
    std::string key;
    for (const Tail tail : tails) {
      for (const ByteStep* step = tail.at; step != tail.end; ++step) {
        for (int i = 0; i < step->count; ++i) {
          key.push_back(static_cast<char>(step->ranges[i].first));
          key.push_back(static_cast<char>(step->ranges[i].last));
        }
        key.push_back('|');
      }
      key.push_back('/');
    }
    const auto [found, is_new] = states_.try_emplace(std::move(key), rows_.size());
    const uint16_t id = found->second;
    if (!is_new) return id;
    NANOVLLM_CHECK(rows_.size() < ByteDfa::kMaxStates);
    rows_.emplace_back().fill(ByteDfa::kDead);
    std::vector<int> cuts;
    for (const Tail tail : tails) {
      for (int i = 0; i < tail.at->count; ++i) {
        cuts.push_back(tail.at->ranges[i].first);
        cuts.push_back(tail.at->ranges[i].last + 1);
      }
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<Tail> next;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int byte = cuts[i];
      bool ends = false;
      next.clear();
      for (const Tail tail : tails) {
        if (!matches(*tail.at, byte)) continue;
        ends = ends || tail.at + 1 == tail.end;
        next.push_back({tail.at + 1, tail.end});
      }
      if (next.empty()) continue;
      const uint16_t target = ends ? ByteDfa::kAccept : state(next);
      std::fill(rows_[id].begin() + byte, rows_[id].begin() + cuts[i + 1], target);
    }
    return id;
  }

  const std::vector<std::array<uint16_t, 256>>& rows() const { return rows_; }

 private:
  static bool matches(const ByteStep& step, int byte) {
    for (int i = 0; i < step.count; ++i) {
      if (byte >= step.ranges[i].first && byte <= step.ranges[i].last) return true;
    }
    return false;
  }

  std::unordered_map<std::string, uint16_t> states_;
  std::vector<std::array<uint16_t, 256>> rows_;
};

ByteDfa compressed(const std::vector<std::array<uint16_t, 256>>& rows) {
  ByteDfa dfa;
  dfa.num_classes = 0;
  std::array<uint8_t, 256> representative = {};
  for (int byte = 0; byte < 256; ++byte) {
    const auto is_alike = [&](uint8_t other) {
      return std::ranges::all_of(rows, [&](const auto& row) { return row[byte] == row[other]; });
    };
    const auto end = representative.begin() + dfa.num_classes;
    const auto known = std::find_if(representative.begin(), end, is_alike);
    dfa.classes[byte] = static_cast<uint8_t>(known - representative.begin());
    if (known == end) representative[dfa.num_classes++] = static_cast<uint8_t>(byte);
  }
  for (const auto& row : rows) {
    for (uint32_t c = 0; c < dfa.num_classes; ++c) dfa.next.push_back(row[representative[c]]);
  }
  return dfa;
}

}  // namespace

ByteDfa make_byte_dfa(std::span<const ByteSequence> sequences) {
  DfaBuilder builder;
  std::vector<Tail> tails;
  for (const ByteSequence& sequence : sequences) {
    tails.push_back({sequence.data(), sequence.data() + sequence.size()});
  }
  builder.state(tails);
  return compressed(builder.rows());
}

const ByteDfa& any_json_character() {
  static const ByteDfa kCharacter = make_byte_dfa(spell(CharRanges::all(), Spelling::kJson));
  return kCharacter;
}

const ByteDfa& canonical_string() {
  static const ByteDfa kString = [] {
    std::vector<ByteSequence> sequences = spell(CharRanges::all(), Spelling::kCanonical);
    ByteDfa dfa = make_byte_dfa(sequences);
    // A character's end is the next one's begin, and a quote ends it all.
    std::ranges::replace(dfa.next, ByteDfa::kAccept, uint16_t{0});
    std::array<uint8_t, 256> quote = {};
    quote['"'] = 1;
    std::array<uint8_t, 256> old = dfa.classes;
    const uint32_t old_classes = dfa.num_classes;
    dfa.num_classes = refine(dfa.classes, dfa.num_classes, quote);
    std::vector<uint16_t> next(dfa.next.size() / old_classes * dfa.num_classes);
    for (size_t state = 0; state < dfa.next.size() / old_classes; ++state) {
      for (int byte = 0; byte < 256; ++byte) {
        next[state * dfa.num_classes + dfa.classes[byte]] =
            dfa.next[state * old_classes + old[byte]];
      }
    }
    next[dfa.classes['"']] = ByteDfa::kAccept;
    dfa.next = std::move(next);
    find_covering_states(dfa);
    return dfa;
  }();
  return kString;
}

void find_covering_states(ByteDfa& dfa) {
  static const ByteDfa kPlain = make_byte_dfa(spell(plain_characters(), Spelling::kText));
  const size_t states = dfa.num_states();
  std::vector<uint8_t> between = dfa.is_between;
  if (between.empty()) {
    between.assign(states, 0);
    between[0] = 1;
  }
  std::array<uint8_t, 256> classes = dfa.classes;
  const uint32_t num_classes = refine(classes, dfa.num_classes, kPlain.classes);
  std::vector<uint8_t> bytes(num_classes);
  for (int byte = 255; byte >= 0; --byte) bytes[classes[byte]] = static_cast<uint8_t>(byte);
  dfa.covers = between;
  // Whether all plain characters whose rest is `rest` lead from `state` to a covering state.
  const auto stays = [&](const auto& self, uint16_t state, uint16_t rest) -> bool {
    return std::ranges::all_of(bytes, [&](uint8_t byte) {
      const uint16_t plain = kPlain.step(rest, byte);
      if (plain == ByteDfa::kDead) return true;
      const uint16_t next = dfa.step(state, byte);
      if (next >= ByteDfa::kAccept) return false;
      return plain == ByteDfa::kAccept ? dfa.covers[next] != 0 : self(self, next, plain);
    });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t state = 0; state < states; ++state) {
      if (dfa.covers[state] == 0 || stays(stays, static_cast<uint16_t>(state), 0)) continue;
      dfa.covers[state] = 0;
      changed = true;
    }
  }
}

uint32_t refine(std::array<uint8_t, 256>& classes, uint32_t num_classes,
                const std::array<uint8_t, 256>& of) {
  std::array<std::array<int16_t, 256>, 256> pairs;  // [class, class of `of`]
  for (uint32_t c = 0; c < num_classes; ++c) pairs[c].fill(-1);
  std::array<uint8_t, 256> joined = {};
  int16_t count = 0;
  for (int byte = 0; byte < 256; ++byte) {
    int16_t& pair = pairs[classes[byte]][of[byte]];
    if (pair < 0) pair = count++;
    joined[byte] = static_cast<uint8_t>(pair);
  }
  classes = joined;
  return static_cast<uint32_t>(count);
}

}  // namespace nanovllm::grammar
