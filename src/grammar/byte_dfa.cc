#include "grammar/byte_dfa.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

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

// Finds texts in a text: the state behind each byte is the longest beginning of one of them that
// ends there (Aho and Corasick, 1975).
class TextFinder {
 public:
  explicit TextFinder(std::span<const std::string> texts) {
    add_node();
    for (const std::string& text : texts) {
      uint32_t node = 0;
      for (const char c : text) {
        const auto byte = static_cast<uint8_t>(c);
        if (nodes_[node].next[byte] == kNone) {
          const uint32_t child = add_node();
          nodes_[node].next[byte] = child;
        }
        node = nodes_[node].next[byte];
      }
      nodes_[node].is_found = true;
    }
    std::vector<std::pair<uint32_t, uint32_t>> todo = {{0, 0}};  // with what it falls back to
    for (size_t i = 0; i < todo.size(); ++i) {
      const auto [node, back] = todo[i];
      if (nodes_[back].is_found) nodes_[node].is_found = true;
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint32_t otherwise = node == 0 ? 0 : nodes_[back].next[byte];
        uint32_t& next = nodes_[node].next[byte];
        if (next == kNone) {
          next = otherwise;
        } else {
          todo.emplace_back(next, otherwise);
        }
      }
    }
  }
  uint32_t step(uint32_t node, uint8_t byte) const { return nodes_[node].next[byte]; }
  bool is_found(uint32_t node) const { return nodes_[node].is_found; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    std::array<uint32_t, 256> next;
    bool is_found = false;
  };
  uint32_t add_node() {
    nodes_.emplace_back().next.fill(kNone);
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  std::vector<Node> nodes_;
};

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

ByteDfa text_without(std::span<const std::string> excluded) {
  static const ByteDfa kText = make_byte_dfa(spell(CharRanges::all(), Spelling::kText));
  const TextFinder finder(excluded);
  std::map<std::pair<uint32_t, uint16_t>, uint16_t> ids;  // by states of the finder and of kText
  std::vector<std::pair<uint32_t, uint16_t>> states;
  const auto find = [&](uint32_t node, uint16_t rest) {
    const auto [found, is_new] =
        ids.try_emplace({node, rest}, static_cast<uint16_t>(states.size()));
    if (is_new) states.emplace_back(node, rest);
    return found->second;
  };
  find(0, 0);
  std::vector<std::array<uint16_t, 256>> rows;
  while (rows.size() < states.size()) {
    const auto [node, rest] = states[rows.size()];
    auto& row = rows.emplace_back();
    for (size_t i = 0; i < 256; ++i) {
      const auto byte = static_cast<uint8_t>(i);
      const uint16_t behind = kText.step(rest, byte);
      const uint32_t next = finder.step(node, byte);
      const bool is_dead = behind == ByteDfa::kDead || finder.is_found(next);
      row[i] = is_dead ? ByteDfa::kDead : find(next, behind == ByteDfa::kAccept ? 0 : behind);
    }
  }
  ByteDfa dfa = compressed(rows);
  for (const auto& [node, rest] : states) dfa.may_end.push_back(rest == 0 ? 1 : 0);
  dfa.is_between = dfa.may_end;
  find_covering_states(dfa);
  return dfa;
}

ByteDfa without_empty_text(const ByteDfa& dfa) {
  NANOVLLM_CHECK(!dfa.is_counted);
  // The first state, which others may lead back to, once more before all others.
  ByteDfa rest = dfa;
  rest.next.insert(rest.next.begin(), dfa.next.begin(), dfa.next.begin() + dfa.num_classes);
  for (uint16_t& next : rest.next) {
    if (next < ByteDfa::kAccept) ++next;
  }
  for (auto* marks : {&rest.covers, &rest.is_between, &rest.may_end}) {
    if (!marks->empty()) marks->insert(marks->begin(), marks->front());
  }
  if (!rest.may_end.empty()) rest.may_end[0] = 0;
  return rest;
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
    // What was found last mostly leads to what was found before, or to its end.
    for (size_t state = states; state-- > 0;) {
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
