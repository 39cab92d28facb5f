#include "engine/step_rows.h"

namespace nanovllm {

void StepRows::clear() {
  rows_.clear();
  num_lists_ = 0;
}

std::vector<int32_t>& StepRows::add_list() {
  if (num_lists_ == lists_.size()) lists_.emplace_back();
  std::vector<int32_t>& list = lists_[num_lists_++];
  list.clear();
  return list;
}

}  // namespace nanovllm
