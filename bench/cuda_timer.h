// How long work on a GPU takes: the timer of all CUDA benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/cuda/device/cuda_check.h"

namespace nanovllm {

// Two events around what is enqueued on one stream.
class CudaTimer {
 public:
  explicit CudaTimer(cudaStream_t stream) : stream_(stream) {
    NANOVLLM_CUDA_CHECK(cudaEventCreate(&begin_));
    NANOVLLM_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~CudaTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  // Microseconds of what `work` enqueues; returns when it is done.
  template <typename Work>
  double time(const Work& work) {
    NANOVLLM_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    work();
    NANOVLLM_CUDA_CHECK(cudaEventRecord(end_, stream_));
    NANOVLLM_CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    NANOVLLM_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds * 1e3;
  }
  // The median of `count` times, behind one that warms up.
  template <typename Work>
  double median(size_t count, const Work& work) {
    time(work);
    std::vector<double> times(count);
    for (double& each : times) each = time(work);
    std::ranges::sort(times);
    return times[count / 2];
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace nanovllm
