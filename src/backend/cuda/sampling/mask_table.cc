#include "backend/cuda/sampling/mask_table.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace nanovllm::cuda {

uint32_t* MaskTable::begin_step(size_t num_masks, size_t mask_words) {
  if (entries_.size() < num_masks || mask_words_ != mask_words) {
    by_key_.clear();
    entries_.clear();
    memory_.reset();
    const size_t num_places = std::max(kMinPlaces, 2 * num_masks);
    memory_ = backend_.allocate(num_places * mask_words * sizeof(uint32_t));
    mask_words_ = mask_words;
    for (size_t i = 0; i < num_places; ++i) entries_.push_back({static_cast<int32_t>(i), 0});
  }
  num_placed_ = 0;
  return static_cast<uint32_t*>(memory_->data());
}

MaskTable::Place MaskTable::place(uint64_t key) {
  NANOVLLM_CHECK(++num_placed_ <= entries_.size());
  const auto known = by_key_.find(key);
  const bool is_new = known == by_key_.end();
  const auto entry = is_new ? std::prev(entries_.end()) : known->second;
  if (is_new) {
    by_key_.erase(entry->key);
    entry->key = key;
    if (key != 0) by_key_.emplace(key, entry);
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return {entry->index, is_new};
}

void MaskTable::end_step() {
  auto entry = entries_.begin();
  for (; num_placed_ > 0; --num_placed_) {
    const auto next = std::next(entry);
    if (entry->key == 0) entries_.splice(entries_.end(), entries_, entry);
    entry = next;
  }
}

}  // namespace nanovllm::cuda
