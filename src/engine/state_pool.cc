#include "engine/state_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr int kGrid = 8192;  // tokens, about

int32_t take_last(std::vector<int32_t>& free) {
  const int32_t taken = free.back();
  free.pop_back();
  return taken;
}

}  // namespace

StatePool::StatePool(StatePoolSize size, int block_size, TextChain& chain, int group)
    : size_(size),
      block_size_(block_size),
      boundary_(std::lcm(block_size, std::max(1, size.chunk))),
      grid_(std::max(1, kGrid / boundary_) * boundary_),
      chain_(chain),
      group_(group),
      kept_(size.num_slots, size.num_logs),
      holders_(size.num_slots),
      free_slots_(size.num_slots),
      free_logs_(size.num_logs) {
  NANOVLLM_CHECK(size.num_slots >= 2 * size.num_logs);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  std::iota(free_logs_.rbegin(), free_logs_.rend(), 0);
}

void StatePool::allocate(Sequence& sequence, const PrefixChain& prefix) {
  if (!is_needed()) return;
  NANOVLLM_CHECK(sequence.states == StateSlots{} && has_room());
  StateSlots& states = sequence.states;
  if (prefix.node == TextChain::kNone) {
    states.slot = take(true);
  } else {
    states.slot = chain_.block(prefix.node, group_);
    ++holders_[states.slot];
    kept_.use(states.slot, num_tokens_saved(prefix.node));
  }
  states.len = prefix.num_blocks * block_size_;
  states.next = take(true);
  states.log = take_last(free_logs_);
  sequence.len_of_next = 0;
}

void StatePool::advance(Sequence& sequence) {
  if (!is_needed()) return;
  StateSlots& states = sequence.states;
  const int len = (sequence.num_computed_tokens - 1) / size_.chunk * size_.chunk;
  if (len == states.len) return;
  sequence.len_of_next = std::exchange(states.len, len);
  std::swap(states.slot, states.next);
  make_next_writable(sequence);
}

// Steps in flight may still read the slot that it leaves. They run before those that write to it.
void StatePool::make_next_writable(Sequence& sequence) {
  int32_t& next = sequence.states.next;
  if (holders_[next] == 1) return;
  --holders_[next];
  next = take(false);
  sequence.len_of_next = 0;
}

// There is one: sequences hold two slots for each log at most, and now one of them holds one less.
int32_t StatePool::take(bool for_new_sequence) {
  if (free_slots_.empty()) {
    const int slot = kept_.first_to_go(holders_, for_new_sequence);
    NANOVLLM_CHECK(slot != KeptStates::kNone);
    chain_.clear_block(kept_.node(slot), group_);
    kept_.evict(slot);
    drop(slot);
  }
  const int32_t slot = take_last(free_slots_);
  holders_[slot] = 1;
  return slot;
}

void StatePool::drop(int32_t slot) {
  if (--holders_[slot] == 0) free_slots_.push_back(slot);
}

// A step that ends no more than a chunk behind a boundary leaves the state at the boundary.
int StatePool::num_tokens_to_state(const Sequence& sequence, int num_new_tokens) const {
  if (!is_needed() || num_new_tokens <= 1) return num_new_tokens;
  const int next = next_for_others(sequence);
  if (next > sequence.num_cacheable_tokens) return num_new_tokens;
  return num_tokens_to_boundary(sequence, num_new_tokens, next);
}

int StatePool::num_tokens_to_boundary(const Sequence& sequence, int num_new_tokens,
                                      int boundary) const {
  if (!is_needed() || sequence.num_computed_tokens > boundary) return num_new_tokens;
  return std::min(num_new_tokens, boundary + size_.chunk - sequence.num_computed_tokens);
}

bool StatePool::is_for_others(const Sequence& sequence, int num_tokens) const {
  return num_tokens % grid_ == 0 || num_tokens == sequence.num_known_elsewhere ||
         num_tokens == boundary_within(sequence.num_prompt_tokens - 1);
}

int StatePool::next_for_others(const Sequence& sequence) const {
  const int behind = sequence.states.len;
  int next = (behind / grid_ + 1) * grid_;
  for (const int end :
       {sequence.num_known_elsewhere, boundary_within(sequence.num_prompt_tokens - 1)}) {
    if (end > behind) next = std::min(next, end);
  }
  return next;
}

void StatePool::keep(Sequence& sequence, int num_tokens) {
  if (!is_needed()) return;
  const int len = (num_tokens - 1) / size_.chunk * size_.chunk;
  if (len == 0 || len % boundary_ != 0 || len > sequence.num_cacheable_tokens) return;
  const StateSlots& states = sequence.states;
  const bool is_before = len == sequence.len_of_next;  // the step in flight has opened a chunk, too
  if (len != states.len && !is_before) return;
  int node = sequence.chain.node;
  for (int blocks = sequence.chain.num_blocks; blocks > len / block_size_; --blocks) {
    node = chain_.parent(node);
  }
  const bool for_others = is_for_others(sequence, len);
  const int kept_there = chain_.block(node, group_);
  if (kept_there != TextChain::kNone) {
    if (for_others && kept_.is_passed(kept_there)) kept_.use(kept_there, num_tokens_saved(node));
    return;
  }
  const int passed = kept_.slot_passed_by(states.log);
  if (passed != KeptStates::kNone) forget(kept_.node(passed));
  const int32_t slot = is_before ? states.next : states.slot;
  ++holders_[slot];
  chain_.set_block(node, group_, slot);
  kept_.keep(slot, node, num_tokens_saved(node), for_others ? KeptStates::kNone : states.log);
  make_next_writable(sequence);
}

// Behind the last state before it that is kept.
int StatePool::num_tokens_saved(int node) const {
  int num_blocks = 1;
  for (node = chain_.parent(node); node != TextChain::kNone; node = chain_.parent(node)) {
    if (chain_.block(node, group_) != TextChain::kNone) break;
    ++num_blocks;
  }
  return num_blocks * block_size_;
}

void StatePool::forget(int node) {
  if (!is_needed()) return;
  const int slot = chain_.block(node, group_);
  if (slot == TextChain::kNone) return;
  kept_.remove(slot);
  drop(slot);
  chain_.clear_block(node, group_);
}

void StatePool::deallocate(Sequence& sequence) {
  if (sequence.states == StateSlots{}) return;
  const StateSlots states = std::exchange(sequence.states, {});
  kept_.settle(states.log);
  drop(states.next);
  drop(states.slot);
  free_logs_.push_back(states.log);
}

std::string StatePool::check_integrity(std::span<const Sequence* const> sequences) const {
  std::vector<int> holders(size_.num_slots), log_holders(size_.num_logs);
  for (const Sequence* sequence : sequences) {
    const StateSlots& states = sequence->states;
    if (states == StateSlots{}) continue;
    ++holders.at(states.slot);
    ++holders.at(states.next);
    if (++log_holders.at(states.log) > 1) return fmt::format("log {} is held twice", states.log);
    if (holders_[states.next] != 1) {
      return fmt::format("slot {} would be written while others have it", states.next);
    }
  }
  if (std::string wrong = check_kept(holders); !wrong.empty()) return wrong;
  for (const int32_t slot : free_slots_) {
    if (holders[slot] != 0) return fmt::format("slot {} is free and held", slot);
  }
  for (const int32_t log : free_logs_) {
    if (log_holders[log] != 0) return fmt::format("log {} is free and held", log);
  }
  if (std::ranges::count(holders, 0) != std::ssize(free_slots_)) return "a slot is lost";
  if (std::ranges::count(log_holders, 0) != std::ssize(free_logs_)) return "a log is lost";
  return "";
}

// Adds them to the holders of each slot, which then are all.
std::string StatePool::check_kept(std::vector<int>& holders) const {
  int num_kept = 0;
  for (int slot = 0; slot < size_.num_slots; ++slot) {
    const int node = kept_.node(slot);
    if (node != KeptStates::kNone) {
      ++num_kept;
      ++holders[slot];
      if (chain_.block(node, group_) != slot) {
        return fmt::format("slot {} is kept for a text that has another", slot);
      }
    }
    if (holders[slot] != holders_[slot]) {
      return fmt::format("slot {} counts {} holders but has {}", slot, holders_[slot],
                         holders[slot]);
    }
  }
  return num_kept == kept_.num_kept() ? "" : "another number of states is kept than is counted";
}

}  // namespace nanovllm
