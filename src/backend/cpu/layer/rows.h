// Ops that treat every row alike: the choice of kernels and the split of rows between threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/layer/row_kernels.h"
#include "backend/cpu/thread_pool.h"
#include "ops/tensor.h"

namespace nanovllm {

RowKernels row_kernels(Isa isa, DType act);

inline void* row_of(const Tensor& t, int64_t row) {
  return t.as<char>() + static_cast<size_t>(row * t.row_size()) * size_of(t.dtype);
}

// Calls fn(begin, end) for ranges of rows, in parallel where the work is worth waking a thread.
template <typename Fn>
void for_rows(ThreadPool& pool, int64_t num_rows, int64_t elements_per_row, Fn&& fn) {
  constexpr int64_t kElementsPerTask = 8192;  // one or two microseconds
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  const int64_t num_tasks = (num_rows + grain - 1) / grain;
  pool.parallel_for(num_tasks, [&](int64_t task, int) {
    fn(task * grain, std::min(num_rows, (task + 1) * grain));
  });
}

}  // namespace nanovllm
