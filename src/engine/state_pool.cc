#include "engine/state_pool.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

int32_t take_last(std::vector<int32_t>& free) {
  const int32_t taken = free.back();
  free.pop_back();
  return taken;
}

// What is wrong with a list of the free ones, and the ones that sequences hold, of `count`.
std::string check(const char* what, int count, std::vector<int32_t> free,
                  const std::vector<int32_t>& held) {
  std::vector<int> owners(count);
  free.insert(free.end(), held.begin(), held.end());
  for (const int32_t one : free) {
    if (one < 0 || one >= count) return fmt::format("{} {} does not exist", what, one);
    ++owners[one];
  }
  for (int i = 0; i < count; ++i) {
    if (owners[i] != 1) return fmt::format("{} {} has {} owners", what, i, owners[i]);
  }
  return "";
}

}  // namespace

StatePool::StatePool(StatePoolSize size)
    : num_slots_(size.num_slots),
      num_logs_(size.num_logs),
      chunk_(size.chunk),
      free_slots_(size.num_slots),
      free_logs_(size.num_logs) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  std::iota(free_logs_.rbegin(), free_logs_.rend(), 0);
}

void StatePool::allocate(Sequence& sequence) {
  if (!is_needed()) return;
  NANOVLLM_CHECK(sequence.states == StateSlots{} && has_room());
  sequence.states = {.slot = take_last(free_slots_),
                     .len = 0,
                     .next = take_last(free_slots_),
                     .log = take_last(free_logs_)};
}

void StatePool::advance(Sequence& sequence) const {
  if (!is_needed()) return;
  StateSlots& states = sequence.states;
  const int len = (sequence.num_computed_tokens - 1) / chunk_ * chunk_;
  if (len == states.len) return;
  states.len = len;
  std::swap(states.slot, states.next);
}

void StatePool::deallocate(Sequence& sequence) {
  if (!is_needed()) return;
  const StateSlots states = std::exchange(sequence.states, {});
  free_slots_.push_back(states.next);
  free_slots_.push_back(states.slot);
  free_logs_.push_back(states.log);
}

std::string StatePool::check_integrity(std::span<const Sequence* const> sequences) const {
  std::vector<int32_t> slots, logs;
  for (const Sequence* sequence : sequences) {
    const StateSlots& states = sequence->states;
    if (states == StateSlots{}) continue;
    slots.insert(slots.end(), {states.slot, states.next});
    logs.push_back(states.log);
  }
  const std::string of_slots = check("state slot", num_slots_, free_slots_, slots);
  return of_slots.empty() ? check("state log", num_logs_, free_logs_, logs) : of_slots;
}

}  // namespace nanovllm
