#include "engine/kept_states.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace nanovllm {

KeptStates::KeptStates(int num_slots, int num_owners)
    : kept_(num_slots), passed_(num_owners, kNone) {}

void KeptStates::keep(int slot, int node, int num_tokens_saved, int owner) {
  NANOVLLM_CHECK(kept_[slot].node == kNone && node != kNone);
  ++num_kept_;
  kept_[slot].node = node;
  use(slot, num_tokens_saved);
  if (owner == kNone) return;
  NANOVLLM_CHECK(passed_[owner] == kNone);
  passed_[owner] = slot;
  kept_[slot].owner = owner;
}

void KeptStates::use(int slot, int num_tokens_saved) {
  Kept& kept = kept_[slot];
  if (kept.owner != kNone) passed_[std::exchange(kept.owner, kNone)] = kNone;
  kept.num_tokens_saved = num_tokens_saved;
  kept.value = clock_ + kWorthOfUse + num_tokens_saved;
}

void KeptStates::settle(int owner) {
  const int slot = passed_[owner];
  if (slot != kNone) use(slot, kept_[slot].num_tokens_saved);
}

void KeptStates::remove(int slot) {
  NANOVLLM_CHECK(kept_[slot].node != kNone);
  if (kept_[slot].owner != kNone) passed_[kept_[slot].owner] = kNone;
  kept_[slot] = {};
  --num_kept_;
}

void KeptStates::evict(int slot) {
  if (kept_[slot].owner == kNone) clock_ = std::max(clock_, kept_[slot].value);
  remove(slot);
}

int KeptStates::first_to_go(std::span<const int> holders, bool for_new_sequence) const {
  const auto rank = [&](int slot) {
    const bool is_passed = for_new_sequence && kept_[slot].owner != kNone;
    return std::tuple(!is_passed, kept_[slot].value);
  };
  int first = kNone;
  for (int slot = 0; slot < static_cast<int>(kept_.size()); ++slot) {
    if (kept_[slot].node == kNone || holders[slot] > 1) continue;
    if (first == kNone || rank(slot) < rank(first)) first = slot;
  }
  return first;
}

}  // namespace nanovllm
