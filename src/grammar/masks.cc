#include "grammar/masks.h"

#include <algorithm>

namespace nanovllm::grammar {
namespace {

// False: the automaton is outgrown, or the guess takes too much.
bool walk(Automaton& automaton, StateId start, const ByteTrie& trie, uint32_t longest,
          MaskWords& words, size_t max_work, bool is_guess) {
  const ByteTrie::Node* const nodes = trie.nodes().data();
  const int32_t* const ids = trie.ids().data();
  const std::array<uint8_t, 256>& classes = automaton.syntax().classes();
  std::vector<StateId> path(longest + 1);  // state behind each byte of a node's text
  path[0] = start;
  const uint32_t end = nodes[0].skip;
  size_t work = automaton.guessed_work(start);
  for (uint32_t i = 1; i < end;) {
    const ByteTrie::Node& node = nodes[i];
    const StateId state =
        automaton.next_of_class(path[node.depth - 1], classes[node.byte], work, is_guess);
    if (is_guess) automaton.set_guessed_work(start, work);
    if (work > max_work && !is_guess) automaton.outgrow();
    if (state == kOutgrown || work > max_work) return false;
    if (state == kDead) {
      i = node.skip;
      continue;
    }
    path[node.depth] = state;
    ++i;
    for (uint32_t t = node.first_token; t < nodes[i].first_token; ++t) {
      words[ids[t] / 32] |= 1u << ids[t] % 32;
    }
  }
  return true;
}

}  // namespace

bool make_mask(Automaton& automaton, StateId state, const TokenIndex& index, MaskWords& words,
               size_t max_work, bool is_guess) {
  const TokenIndex::Slice* const slice = index.slice(automaton.covers(state));
  if (slice != nullptr) {
    words = slice->tokens;
  } else {
    words.assign(index.num_words(), 0);
  }
  const ByteTrie& trie = slice != nullptr ? slice->others : index.trie();
  if (walk(automaton, state, trie, index.longest(), words, max_work, is_guess)) return true;
  words.assign(index.num_words(), 0);
  return false;
}

MaskCache::Mask MaskCache::find(uint64_t grammar, StateId state) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find({grammar, state});
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->mask;
}

void MaskCache::add(uint64_t grammar, StateId state, Mask mask) {
  const std::lock_guard lock(mutex_);
  const Key key{grammar, state};
  if (places_.contains(key)) return;  // another thread was first
  bytes_ += mask->size() * sizeof(uint32_t) + kEntryBytes;
  entries_.push_front({grammar, state, std::move(mask)});
  places_.emplace(key, entries_.begin());
  while (bytes_ > max_bytes_ && entries_.size() > 1) {
    const Entry& last = entries_.back();
    bytes_ -= last.mask->size() * sizeof(uint32_t) + kEntryBytes;
    places_.erase({last.grammar, last.state});
    entries_.pop_back();
  }
}

size_t MaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace nanovllm::grammar
