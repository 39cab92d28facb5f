// Launchers of the kernels by which the ranks of a tensor-parallel group exchange tensors. Every
// rank launches the same ones with the same sizes in the same order; tensors are aligned to 16
// bytes. Results are the same bits on all ranks. Launchers return when all ranks have launched, and
// throw Error(kInternal) when another rank has failed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/peers/peer_queue.h"
#include "base/dtype.h"

namespace nanovllm::cuda {

// x[num_elements] becomes the sum of all ranks' x. Lines have the least latency, the exchange of
// addresses moves the fewest bytes; the bits are the same.
void launch_all_reduce_lines(const PeerQueue& queue, void* x, DType dtype, int64_t num_elements);
void launch_all_reduce_exchange(const PeerQueue& queue, void* x, DType dtype, int64_t num_elements);

// residual[num_rows, hidden] += the sum of all ranks' x; out = rms_norm(residual). By lines, of
// rows for which plan_sum_and_norm() has it.
void launch_all_reduce_add_rms_norm(const PeerQueue& queue, void* out, DType dtype, float* residual,
                                    const void* x, const float* weight, int num_rows, int hidden,
                                    float eps);

// out[num_rows, world_size * row_bytes] = the ranks' x[num_rows, row_bytes] side by side.
void launch_all_gather(const PeerQueue& queue, void* out, const void* x, int64_t num_rows,
                       int64_t row_bytes);

}  // namespace nanovllm::cuda
