#include "grammar/string_dfa.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "grammar/regex.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxProduct = 4000;              // states
constexpr size_t kMaxShortest = size_t{1} << 18;  // entries of the table of lengths
constexpr size_t kMaxLanguageBytes = size_t{16} << 20;

// Takes out what no accepted string goes through. False: nothing is left.
bool keep_live(ByteDfa& dfa) {
  const size_t states = dfa.num_states();
  std::vector<std::vector<uint16_t>> before(states);
  std::vector<uint8_t> is_live(states);
  std::vector<uint16_t> todo;
  for (size_t state = 0; state < states; ++state) {
    for (uint32_t c = 0; c < dfa.num_classes; ++c) {
      const uint16_t next = dfa.next[state * dfa.num_classes + c];
      if (next < ByteDfa::kAccept) before[next].push_back(static_cast<uint16_t>(state));
      if ((next == ByteDfa::kAccept || dfa.ends(state)) && is_live[state] == 0) {
        is_live[state] = 1;
        todo.push_back(static_cast<uint16_t>(state));
      }
    }
  }
  for (size_t i = 0; i < todo.size(); ++i) {
    for (const uint16_t state : before[todo[i]]) {
      if (is_live[state] == 0) todo.push_back(state);
      is_live[state] = 1;
    }
  }
  for (uint16_t& next : dfa.next) {
    if (next < ByteDfa::kAccept && is_live[next] == 0) next = ByteDfa::kDead;
  }
  return is_live[0] != 0;
}

// The shortest end of `at_least` characters or more, by the tables of one character less.
void find_shortest(ByteDfa& dfa) {
  const size_t states = dfa.num_states(), width = size_t{dfa.min} + 1;
  dfa.shortest.assign(states * width, kUnbounded);
  std::vector<std::vector<uint16_t>> before(states);
  std::vector<std::vector<uint16_t>> layers(1);  // by characters to the end
  for (size_t state = 0; state < states; ++state) {
    for (uint32_t c = 0; c < dfa.num_classes; ++c) {
      const uint16_t next = dfa.next[state * dfa.num_classes + c];
      if (next < ByteDfa::kAccept) before[next].push_back(static_cast<uint16_t>(state));
      if ((next == ByteDfa::kAccept || dfa.ends(state)) && dfa.shortest[state * width] != 0) {
        dfa.shortest[state * width] = 0;
        layers[0].push_back(static_cast<uint16_t>(state));
      }
    }
  }
  // Bytes within a character cost nothing, its last one costs one: what leads to a state between
  // characters is a layer further.
  for (uint32_t chars = 0; chars < layers.size(); ++chars) {
    for (size_t i = 0; i < layers[chars].size(); ++i) {
      const uint16_t state = layers[chars][i];
      if (dfa.shortest[state * width] != chars) continue;
      const uint32_t cost = chars + (dfa.is_between[state] != 0 ? 1 : 0);
      for (const uint16_t from : before[state]) {
        if (dfa.shortest[from * width] <= cost) continue;
        dfa.shortest[from * width] = cost;
        if (layers.size() <= cost) layers.resize(cost + 1);
        layers[cost].push_back(from);
      }
    }
  }
  for (size_t least = 1; least < width; ++least) {
    // Characters have up to twelve bytes, and states within one have no cycles.
    for (int round = 0; round < 12; ++round) {
      bool changed = false;
      for (size_t state = 0; state < states; ++state) {
        uint32_t best = dfa.shortest[state * width + least];
        for (uint32_t c = 0; c < dfa.num_classes; ++c) {
          const uint16_t next = dfa.next[state * dfa.num_classes + c];
          if (next >= ByteDfa::kAccept) continue;
          const bool ends = dfa.is_between[next] != 0;
          const uint32_t rest = dfa.shortest[next * width + (ends ? least - 1 : least)];
          if (rest != kUnbounded) best = std::min(best, rest + (ends ? 1 : 0));
        }
        changed = changed || best != dfa.shortest[state * width + least];
        dfa.shortest[state * width + least] = best;
      }
      if (!changed) break;
    }
  }
}

}  // namespace

StringLanguage::StringLanguage(const std::function<NodeId(Syntax&)>& build)
    : syntax_(std::make_unique<Syntax>()) {
  const NodeId start = syntax_->finish(build(*syntax_));
  if (start != syntax_->never()) {
    automaton_ = std::make_unique<Automaton>(*syntax_, start, kMaxLanguageBytes);
  }
}

StringLanguage StringLanguage::of_pattern(std::string_view pattern, const std::string& where,
                                          Spelling spelling) {
  return StringLanguage([&](Syntax& syntax) {
    return compile_regex(pattern, syntax,
                         {.spelling = spelling, .is_search = true, .where = where});
  });
}

StringLanguage StringLanguage::of_regex(std::string_view regex, Spelling spelling) {
  return StringLanguage(
      [&](Syntax& syntax) { return compile_regex(regex, syntax, {.spelling = spelling}); });
}

StringLanguage StringLanguage::of_length(LengthBounds length) {
  return StringLanguage([&](Syntax& syntax) {
    return syntax.repeat(syntax.characters(CharRanges::all(), Spelling::kCanonical), length.min,
                         length.max);
  });
}

StringLanguage StringLanguage::without(const std::vector<std::string>& texts) {
  return StringLanguage([&](Syntax& syntax) { return syntax.dfa(text_without(texts)); });
}

StringLanguage StringLanguage::of_texts(const std::vector<std::string>& texts) {
  return StringLanguage([&](Syntax& syntax) {
    std::vector<std::string> spelled;
    spelled.reserve(texts.size());
    for (const std::string& text : texts) spelled.push_back(spell_text(text, Spelling::kCanonical));
    return syntax.choice_of_texts(std::move(spelled));
  });
}

bool StringLanguage::contains(std::string_view text) const {
  if (automaton_ == nullptr) return false;
  const StateId state = automaton_->advance(kStart, spell_text(text, Spelling::kCanonical));
  if (state == kOutgrown) {
    throw_error(ErrorCode::kUnsupported,
                "the JSON schema has a pattern that is too large to be held against \"{}\"",
                printable(text));
  }
  return automaton_->is_accepting(state);
}

// From each live state on there is a text, and none has two ways: so there are no fewer texts than
// ways that are open, and no end of them where a way is longer than there are states.
std::optional<std::vector<std::string>> few_texts(const ByteDfa& dfa, size_t most) {
  std::vector<std::string> texts;
  std::vector<std::pair<uint16_t, std::string>> open = {{uint16_t{0}, "\""}}, longer;
  for (size_t length = 0; !open.empty(); ++length) {
    if (length > dfa.num_states()) return std::nullopt;
    longer.clear();
    for (const auto& [state, text] : open) {
      for (int byte = 0; byte < 256; ++byte) {
        const uint16_t next = dfa.step(state, static_cast<uint8_t>(byte));
        if (next == ByteDfa::kDead) continue;
        std::string its = text + static_cast<char>(byte);
        if (next == ByteDfa::kAccept) {
          texts.push_back(nlohmann::json::parse(its).get<std::string>());
        } else {
          longer.emplace_back(next, std::move(its));
        }
        if (texts.size() + longer.size() > most) return std::nullopt;
      }
    }
    open.swap(longer);
  }
  return texts;
}

StringProduct::StringProduct(std::span<const StringLanguage* const> languages, std::string where,
                             ByteDfa strings)
    : languages_(languages.begin(), languages.end()),
      where_(std::move(where)),
      strings_(std::move(strings)) {
  dfa_.num_classes = refine(dfa_.classes, 1, strings_.classes);
  for (const StringLanguage* language : languages_) {
    if (language->automaton() == nullptr) continue;
    dfa_.num_classes =
        refine(dfa_.classes, dfa_.num_classes, language->automaton()->syntax().classes());
  }
  std::vector<uint8_t> bytes(dfa_.num_classes);
  for (int byte = 255; byte >= 0; --byte) bytes[dfa_.classes[byte]] = static_cast<uint8_t>(byte);
  std::vector<StateId> start = {0};
  for (const StringLanguage* language : languages_) {
    start.push_back(language->automaton() == nullptr ? kDead : kStart);
  }
  find(start);
  for (size_t num_done = 0; num_done < states_.size();) {
    if (states_.size() > kMaxProduct) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: what its patterns and lengths say together needs more than {} states, "
                  "which is not supported",
                  where_, kMaxProduct);
    }
    const std::vector<StateId>& state = *states_[num_done++];
    for (const uint8_t byte : bytes) dfa_.next.push_back(next(state, byte));
  }
}

uint16_t StringProduct::next(const std::vector<StateId>& state, uint8_t byte) {
  const uint16_t outer = strings_.step(static_cast<uint16_t>(state[0]), byte);
  if (outer >= ByteDfa::kAccept) return outer;
  std::vector<StateId> next = {outer};
  for (size_t i = 0; i < languages_.size(); ++i) {
    const StateId from = state[i + 1];
    next.push_back(from <= kOutgrown ? kDead : languages_[i]->automaton()->next(from, byte));
    if (next.back() == kOutgrown) {
      throw_error(ErrorCode::kUnsupported, "{}: a pattern is too large", where_);
    }
  }
  return find(next);
}

uint16_t StringProduct::find(const std::vector<StateId>& state) {
  const auto [found, is_new] = ids_.try_emplace(state, static_cast<uint16_t>(states_.size()));
  if (is_new) states_.push_back(&found->first);
  return found->second;
}

uint32_t StringProduct::membership(size_t state) const {
  uint32_t bits = 0;
  for (size_t i = 0; i < languages_.size(); ++i) {
    const StateId at = (*states_[state])[i + 1];
    if (at > kOutgrown && languages_[i]->automaton()->is_accepting(at)) bits |= 1u << i;
  }
  return bits;
}

std::set<uint32_t> StringProduct::memberships() const {
  std::set<uint32_t> found;
  for (size_t state = 0; state < size(); ++state) {
    if (is_between(state)) found.insert(membership(state));
  }
  return found;
}

std::optional<ByteDfa> StringProduct::accepting(const std::function<bool(uint32_t)>& accepts,
                                                LengthBounds length) const {
  ByteDfa dfa = dfa_;
  dfa.is_between.resize(size());
  if (!strings_.may_end.empty()) dfa.may_end.resize(size());
  const uint8_t quote = dfa.classes['"'];
  for (size_t state = 0; state < size(); ++state) {
    if (!is_between(state)) continue;
    dfa.is_between[state] = 1;
    const bool is_accepted = accepts(membership(state));
    if (!dfa.may_end.empty()) {
      dfa.may_end[state] = is_accepted ? 1 : 0;
    } else if (!is_accepted) {
      dfa.next[state * dfa.num_classes + quote] = ByteDfa::kDead;
    }
  }
  if (!keep_live(dfa)) return std::nullopt;
  if (length.is_bounded() && !add_length(dfa, length)) return std::nullopt;
  find_covering_states(dfa);
  return dfa;
}

// False: no string is so long.
bool StringProduct::add_length(ByteDfa& dfa, LengthBounds length) const {
  dfa.is_counted = true;
  dfa.min = length.min;
  dfa.max = length.max;
  if (dfa.num_states() * (size_t{dfa.min} + 1) > kMaxShortest) {
    throw_error(ErrorCode::kUnsupported,
                "{}: its pattern and a minLength of {} need too large a table, which is not "
                "supported",
                where_, dfa.min);
  }
  find_shortest(dfa);
  const uint32_t least = dfa.shortest[dfa.min];
  if (least == kUnbounded || least > dfa.max) return false;
  for (size_t at = 0; at < dfa.shortest.size(); at += size_t{dfa.min} + 1) {
    if (dfa.shortest[at] == kUnbounded) continue;  // of a state that is not live
    dfa.most_needed = std::max(dfa.most_needed, dfa.shortest[at]);
  }
  return true;
}

}  // namespace nanovllm::grammar
