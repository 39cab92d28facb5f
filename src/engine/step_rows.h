// The sampling rows of a step, and what they point to.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

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

  std::span<const SamplingRow> rows() const { return rows_; }

 private:
  std::vector<SamplingRow> rows_;
  std::deque<std::vector<int32_t>> lists_;
  size_t num_lists_ = 0;  // those behind are for later steps
};

}  // namespace nanovllm
