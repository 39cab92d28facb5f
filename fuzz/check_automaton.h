// What must hold for any grammar and any text.
#pragma once

#include <string_view>

#include "fuzzing.h"
#include "grammar/automaton.h"

namespace nanovllm::grammar {

inline void check_automaton(const Syntax& syntax, NodeId start, std::string_view text) {
  constexpr size_t kMaxBytes = size_t{1} << 22;
  Automaton automaton(syntax, start, kMaxBytes);
  StateId state = kStart;
  for (const char byte : text) {
    const StateId next = automaton.next(state, static_cast<uint8_t>(byte));
    fuzzing::require(automaton.next(state, static_cast<uint8_t>(byte)) == next,
                     "states do not change");
    if (next <= kOutgrown) break;
    state = next;
    // One of the bytes goes on, or the text may end.
    bool goes_on = automaton.is_accepting(state);
    for (int other = 0; other < 256 && !goes_on; ++other) {
      goes_on = automaton.next(state, static_cast<uint8_t>(other)) != kDead;
    }
    fuzzing::require(goes_on, "no state that lives is a dead end");
    const StateId near = automaton.nearby(state, 8);
    fuzzing::require(automaton.is_accepting(near) == automaton.is_accepting(state),
                     "what is nearby accepts alike");
  }
  fuzzing::require(automaton.bytes() < 2 * kMaxBytes, "memory is bounded");
}

}  // namespace nanovllm::grammar
