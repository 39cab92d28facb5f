// Launchers of attention: raw device pointers, no framework. All launches are asynchronous on
// `stream`; act is bfloat16 or float32 as `dtype` says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm::cuda {

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

}  // namespace nanovllm::cuda
