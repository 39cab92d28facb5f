// Launchers of the CUDA kernels: raw device pointers, no framework. Each .cu file holds one idea
// and says in its first lines which bytes it must move. All launches are asynchronous on `stream`;
// act is bfloat16 or float32 as `dtype` says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// The largest shapes that the kernels below take; layer_plan.h refuses models with larger ones.
constexpr int kMaxHeadDim = 256;  // and a multiple of kHeadVector
constexpr int kHeadVector = 8;
constexpr int kMaxNormSize = 16384;          // elements of a row that rms_norm takes
constexpr int kMaxUnalignedNormSize = 8192;  // where it is no multiple of 4

// `host` is pinned memory; see Backend::stage_batch.
void launch_stage_batch(cudaStream_t stream, int32_t* device, const int32_t* host, int64_t count,
                        int64_t num_token_ids, const int32_t* previous_ids);

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

void launch_qk_norm_rope_store(cudaStream_t stream, void* qkv, DType dtype, int num_heads,
                               const RopeParams& rope, const KvCache& cache,
                               const ForwardBatch& batch);

class DecodePlans;  // attention_decode_plan.h

// Of launches of one stream, which may share it. At fixed addresses, all bytes 0xff at first.
struct AttentionWorkspace {
  uint32_t* decode_words = nullptr;   // see hand_over.cuh
  uint32_t* prefill_words = nullptr;  // of Hopper's kernel, which is not used without
  DecodePlans* plans = nullptr;
  int num_multiprocessors = 0;
  int max_shared_bytes = 0;  // that a block may have
};
size_t decode_attention_bytes(int num_multiprocessors);
size_t prefill_attention_bytes(int num_multiprocessors);

// The launch depends on the batch's numbers of tokens and sequences and its largest length, never
// on the other lengths, where all sequences decode. `deterministic`: a row's bits depend on its own
// sequence only.
void launch_paged_attention(cudaStream_t stream, void* out, const void* qkv, DType dtype,
                            const KvCache& cache, const AttentionParams& params,
                            const ForwardBatch& batch, const AttentionWorkspace& workspace,
                            bool deterministic);

// Both in one kernel, for a batch of decodes only: returns false, and launches nothing, where there
// is none for these shapes.
bool launch_store_and_decode_attention(cudaStream_t stream, void* out, const void* qkv, DType dtype,
                                       const RopeParams& rope, const KvCache& cache,
                                       const AttentionParams& params, const ForwardBatch& batch,
                                       const AttentionWorkspace& workspace);

void launch_act_and_mul(cudaStream_t stream, void* out, const void* gate_up, DType dtype,
                        int num_rows, int width, Activation activation);

void launch_gather_rows(cudaStream_t stream, void* out, const void* x, const int32_t* rows,
                        int num_rows, int64_t row_bytes);

// logits[i] = cap * tanh(logits[i] / cap)
void launch_soft_cap(cudaStream_t stream, float* logits, int64_t count, float cap);

// out[T,N] = x[T,K] W[N,K]^T + bias[N], or without, in an order that is the same for any T.
void launch_linear_float(cudaStream_t stream, float* out, const void* x, DType dtype,
                         const void* weight, const float* bias, int num_rows, int n, int k);

}  // namespace nanovllm::cuda
