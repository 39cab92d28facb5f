// Launchers of what is computed row by row: raw device pointers, no framework. Each .cu file holds
// one idea and says in its first lines which bytes it must move. All launches are asynchronous on
// `stream`; act is bfloat16 or float32 as `dtype` says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// The largest rows that the kernels below take; check_shapes.h refuses models with larger ones.
constexpr int kMaxNormSize = 16384;          // elements of a row that rms_norm takes
constexpr int kMaxUnalignedNormSize = 8192;  // where it is no multiple of 4

void launch_embedding(cudaStream_t stream, float* out, const int32_t* ids, const void* table,
                      DType dtype, int num_tokens, int hidden, int num_ids, int32_t first_id,
                      float scale);

// With a residual, residual += act_scale * act, and its norm; otherwise that of x, float32, or else
// of act. A weight of null: what would be normalised, as it is.
void launch_rms_norm(cudaStream_t stream, void* out, DType dtype, float* residual, const void* act,
                     float act_scale, const float* x, const float* weight, int num_rows, int hidden,
                     float eps);

// Backend::norm_all_heads of qkv[num_rows, width], all at once or in two launches: this rank's
// means, and once they are the sums of all ranks' the rest.
enum class HeadsNormPart { kAll, kMeans, kScale };
void launch_norm_all_heads(cudaStream_t stream, void* qkv, DType dtype, float* means,
                           const HeadsNormParams& norm, int num_rows, int width, int world_size,
                           HeadsNormPart part);

void launch_qk_norm_rope_store(cudaStream_t stream, Tensor qkv, int num_heads,
                               const RopeParams& rope, const KvCache& cache,
                               const ForwardBatch& batch);

void launch_act_and_mul(cudaStream_t stream, void* out, const void* gate_up, DType dtype,
                        int num_rows, int width, Activation activation);

void launch_gather_rows(cudaStream_t stream, void* out, const void* x, const int32_t* rows,
                        int num_rows, int64_t row_bytes);

// logits[i] = cap * tanh(logits[i] / cap)
void launch_soft_cap(cudaStream_t stream, float* logits, int64_t count, float cap);

}  // namespace nanovllm::cuda
