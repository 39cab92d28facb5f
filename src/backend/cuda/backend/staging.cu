// A step's integers from pinned host memory to their place on the device, read over the bus by the
// kernel itself: one launch in order with the step's other kernels, where a copy would make the
// stream change to the copy engine and back. Token ids that the host does not know yet are filled
// in on the way from what the step before sampled. Moves 4 bytes an element over the bus, 16 at a
// time.
#include "backend/cuda/backend/staging.h"
#include "backend/cuda/device/device.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;  // elements a thread

__global__ void stage_batch_kernel(int32_t* device, const int32_t* host, int64_t count,
                                   int64_t num_token_ids, const int32_t* previous_ids) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (first >= count) return;
  int32_t values[kVector] = {};
  if (first + kVector <= count) {
    *reinterpret_cast<int4*>(values) = *reinterpret_cast<const int4*>(host + first);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (first + j < count) values[j] = host[first + j];
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (first + j >= count) break;
    const bool is_pending = first + j < num_token_ids && values[j] < 0;
    device[first + j] = is_pending ? max(0, previous_ids[-1 - values[j]]) : values[j];
  }
}

}  // namespace

void launch_stage_batch(cudaStream_t stream, int32_t* device, const int32_t* host, int64_t count,
                        int64_t num_token_ids, const int32_t* previous_ids) {
  if (count == 0) return;
  stage_batch_kernel<<<div_up(count, kThreads * kVector), kThreads, 0, stream>>>(
      device, host, count, num_token_ids, previous_ids);
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
