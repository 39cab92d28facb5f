// The sampling rows of a step, and what they point to.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/constraint.h"
#include "engine/mask_pool.h"
#include "ops/sampling.h"

namespace nanovllm {

// Keeps its memory from step to step.
class StepRows {
 public:
  void clear();
  // The next row. The reference holds until the next call.
  SamplingRow& add(const SamplingRow& row) { return rows_.emplace_back(row); }
  // An empty list that lives until clear().
  std::vector<int32_t>& add_list();
  // Of the row added last. make_masks() makes it, once where several have the same. That of a guess
  // which takes too much leaves no token.
  void add_mask(const TokenMask& mask);
  void make_masks();

  std::span<const SamplingRow> rows() const { return rows_; }

 private:
  struct MaskUse {
    size_t row;
    size_t mask;  // in masks_
  };

  std::vector<SamplingRow> rows_;
  std::deque<std::vector<int32_t>> lists_;
  size_t num_lists_ = 0;  // those behind are for later steps
  std::vector<TokenMask> masks_;
  std::vector<MaskUse> mask_uses_;
  std::unordered_map<uint64_t, size_t> masks_by_key_;
  std::vector<uint32_t> words_;    // of masks_, one behind the other
  std::vector<uint8_t> is_whole_;  // of masks_
  MaskPool pool_;
};

}  // namespace nanovllm
