// Launchers of attention: raw device pointers, no framework. All launches are asynchronous on
// `stream`; act is bfloat16 or float32 as `dtype` says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/attention/attention_plan.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

class DecodePlans;  // attention_decode_plan.h
class PieceQueues;  // attention_pieces_plan.h

// Of launches of one stream, which may share it. At fixed addresses, all bytes 0xff at first.
struct AttentionWorkspace {
  uint32_t* decode_words = nullptr;   // see hand_over.cuh
  uint32_t* prefill_words = nullptr;  // of Hopper's kernel, which is not used without
  DecodePlans* plans = nullptr;
  uint32_t* piece_words = nullptr;  // and queues: of kPieces, which is not used without
  PieceQueues* queues = nullptr;
};
size_t decode_attention_bytes(int num_multiprocessors);
size_t prefill_attention_bytes(int num_multiprocessors);
size_t piece_attention_bytes();

AttentionShape attention_shape(DType dtype, const KvCacheSpec& spec, const AttentionParams& params);

// What plan_attention() says of the batch. The launch depends on the batch's numbers of tokens and
// sequences and its largest length, never on the other lengths, where all sequences decode.
void launch_paged_attention(cudaStream_t stream, void* out, const void* qkv, DType dtype,
                            const KvCache& cache, const AttentionParams& params,
                            const ForwardBatch& batch, const AttentionWorkspace& workspace,
                            const AttentionPlan& plan);

// Both in one kernel, in bfloat16, as plan_store_and_attend() says.
void launch_store_and_decode_attention(cudaStream_t stream, void* out, const void* qkv,
                                       const RopeParams& rope, const KvCache& cache,
                                       const AttentionParams& params, const ForwardBatch& batch,
                                       const AttentionWorkspace& workspace,
                                       const DecodeChoice& choice);

}  // namespace nanovllm::cuda
