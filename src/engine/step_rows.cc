#include "engine/step_rows.h"

#include <algorithm>

namespace nanovllm {

void StepRows::clear() {
  rows_.clear();
  num_lists_ = 0;
  masks_.clear();
  mask_uses_.clear();
  masks_by_key_.clear();
}

std::vector<int32_t>& StepRows::add_list() {
  if (num_lists_ == lists_.size()) lists_.emplace_back();
  std::vector<int32_t>& list = lists_[num_lists_++];
  list.clear();
  return list;
}

void StepRows::add_mask(const TokenMask& mask) {
  if (mask.rules == nullptr) return;
  SamplingRow& row = rows_.back();
  row.allowed_key = mask.key();
  if (mask.is_of_ids_alone) {
    row.allowed = mask.rules->allowed;
    return;
  }
  size_t number = masks_.size();
  if (row.allowed_key != 0) {
    number = masks_by_key_.try_emplace(row.allowed_key, number).first->second;
  }
  if (number == masks_.size()) masks_.push_back(mask);
  if (!mask.is_guess) masks_[number].is_guess = false;
  mask_uses_.push_back({rows_.size() - 1, number});
}

void StepRows::make_masks() {
  if (masks_.empty()) return;
  const size_t num_words = (static_cast<size_t>(masks_[0].rules->vocab_size) + 31) / 32;
  words_.resize(std::max(words_.size(), masks_.size() * num_words));
  const auto words_of = [&](size_t mask) {
    return std::span(words_).subspan(mask * num_words, num_words);
  };
  is_whole_.assign(masks_.size(), 1);
  pool_.run(static_cast<int>(masks_.size()),
            [&](int i) { is_whole_[i] = masks_[i].fill(words_of(i)) ? 1 : 0; });
  for (const MaskUse& use : mask_uses_) {
    rows_[use.row].allowed = words_of(use.mask);
    if (is_whole_[use.mask] == 0) rows_[use.row].allowed_key = 0;  // another one will have it
  }
}

}  // namespace nanovllm
