// What the two sides of Hopper's prefill attention share: the producers, who bring tiles to shared
// memory, and the consumers, who compute. See attention_prefill_wgmma.cu.
#pragma once

#include "backend/cuda/attention/attention_prefill.cuh"
#include "backend/cuda/attention/attention_prefill_merge.cuh"
#include "backend/cuda/device/bulk_copy.cuh"

namespace nanovllm::cuda::hopper_prefill {

constexpr int kGroups = 2;      // warpgroups that compute
constexpr int kGroupRows = 64;  // of each
constexpr int kGroupThreads = 128;
constexpr int kRows = kGroups * kGroupRows;
constexpr int kConsumers = kGroups * kGroupThreads;
constexpr int kLoaders = 96;  // threads that bring queries
constexpr int kThreads = kConsumers + kLoaders + 32;
static_assert(kConsumers == kPartThreads);
constexpr int kStages = 2;
constexpr int kChunk = 64;  // columns of a line
constexpr int kLineBytes = kChunk * 2;

// What a block computes next: a part of the keys of some rows.
struct PrefillJob {
  PrefillWork work = {};  // num_rows = 0: no more
  int index = 0;          // among all jobs
  int part = 0, num_parts = 1;
};

struct PrefillArguments {
  __nv_bfloat16* out;
  const __nv_bfloat16* qkv;
  AttentionProblem p;
  PrefillParts parts;
  uint32_t* counters;  // two
  int box_rows;        // of a copy: a divisor of kKeys and the block size
};

template <int kDim>
struct PrefillShared {
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kQueryBuffers = kDim <= 128 ? 2 : 1;
  using Queries = uint8_t[kChunks][kRows][kLineBytes];
  using Keys = uint8_t[kChunks][kKeys][kLineBytes];

  alignas(1024) Queries queries[kQueryBuffers];
  alignas(1024) Keys keys[kStages], values[kStages];
  PrefillJob jobs[kQueryBuffers];
  Barrier job_known[kQueryBuffers], queries_there[kQueryBuffers], queries_free[kQueryBuffers];
  Barrier keys_there[kStages], keys_free[kStages];
  Barrier values_there[kStages], values_free[kStages];

  // By one thread.
  __device__ void init_barriers() {
    for (int i = 0; i < kQueryBuffers; ++i) {
      job_known[i].init(1);
      queries_there[i].init(kLoaders);
      queries_free[i].init_warps(kConsumers / 32);
    }
    for (int i = 0; i < kStages; ++i) {
      keys_there[i].init(1);
      values_there[i].init(1);
      keys_free[i].init_warps(kConsumers / 32);
      values_free[i].init_warps(kConsumers / 32);
    }
    publish_barriers();
  }
  // Where 16 bytes of a row lie.
  __device__ static void* place_in(Queries& queries, int row, int vector) {
    return &queries[vector / 8][row][(vector ^ row) % 8 * 16];
  }
};

// Positions of keys, in tiles that begin at multiples of kKeys.
template <int kKeys>
struct Span {
  int first, end;

  __device__ int num_tiles() const { return (end - first + kKeys - 1) / kKeys; }
  __device__ Span part(int i, int count) const {
    const int tiles = num_tiles();
    return {first + tiles * i / count * kKeys, min(end, first + tiles * (i + 1) / count * kKeys)};
  }
};

// What kRows rows see.
template <int kKeys>
__device__ Span<kKeys> span_of(const AttentionProblem& p, const PrefillWork& work) {
  const int last_row = min(work.row + kRows, work.num_rows) - 1;
  return {p.first_visible(work.context + work.row / p.group) / kKeys * kKeys,
          work.context + last_row / p.group + 1};
}

}  // namespace nanovllm::cuda::hopper_prefill
