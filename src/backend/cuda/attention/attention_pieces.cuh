// What the parts of attention in pieces share. See attention_pieces.cu.
#pragma once

#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/attention/attention_pieces.h"
#include "backend/cuda/attention/attention_pieces_plan.h"
#include "backend/cuda/device/bulk_copy.cuh"

namespace nanovllm::cuda::key_pieces {

constexpr int kMostWarps = 8;  // of a block
constexpr int kSlice = 16;     // keys that are copied at once, a divisor of every block size
constexpr int kJobs = 2;
constexpr int kCounterWords = 32;  // ahead of those of sequences

// A unit of work is a sequence's new tokens and those query heads of a KV head that a warp takes
// at once: rows, token by token.
struct PieceArguments {
  __nv_bfloat16* out;
  const __nv_bfloat16* qkv;
  const __nv_bfloat16* cache;
  AttentionProblem p;
  PieceQueue queue;
  bool queue_is_new;  // from the predecessor
  uint32_t* words;    // AttentionWorkspace::piece_words: counters, then slots of pieces
  int parts, part_heads, units;
  int slot_rows;  // of a slot
  int slots;      // where they begin, in words
  int stages;     // of a warp's ring

  __device__ int kv_head(int unit) const { return unit / parts; }
  __device__ int first_head(int unit) const {
    return unit / parts * p.group + unit % parts * part_heads;
  }
  __device__ int num_heads(int unit) const {
    return min(part_heads, p.group - unit % parts * part_heads);
  }
};

struct PieceJob {
  KeyPiece piece;  // num_tokens = 0: no more
  int unit;
};

struct StagePlace {
  int place = 0;
  uint32_t parity = 0;

  __device__ void next(int stages) {
    if (++place == stages) {
      place = 0;
      parity ^= 1;
    }
  }
  __device__ void advance(int count, int stages) {
    place += count;
#pragma unroll 1
    while (place >= stages) {
      place -= stages;
      parity ^= 1;
    }
  }
};

// What a warp has in shared memory beside its ring of slices of keys and values, which lie there as
// in the cache, and its rows of queries.
template <int kDim, int kRowTiles>
struct PieceShared {
  static constexpr int kKeys = tile_keys(kDim);
  static constexpr int kSlices = kKeys / kSlice;  // of a tile
  static constexpr int kSliceBytes = kSlice * kDim * 2;
  static constexpr int kLeastStages = 2, kMostStages = 32;
  static constexpr int kAlignment = 128;  // see copy_bulk()
  // Queries of one tile of rows are kept in registers: the next piece's may come at once.
  static constexpr bool kKeepsQueries = kRowTiles == 1 && kDim <= 128;
  static constexpr int kQueryBuffers = kKeepsQueries ? 1 : kJobs;
  // Bytes; eight rows' chunks lie in different banks.
  static constexpr int kQueryStride = kDim * 2 + 16;

  // Of a tile, each lane's own: a loop over slices is short code, registers would have it unrolled.
  float4 scores[kSlices][kRowTiles][2][32];
  PieceJob jobs[kJobs];
  Barrier queries_there[kQueryBuffers];
  Barrier slice_there[kMostStages];

  // By one thread.
  __device__ void init_barriers() {
    for (Barrier& barrier : queries_there) barrier.init(1);
    for (Barrier& barrier : slice_there) barrier.init(1);
  }

  static constexpr int query_bytes(int rows) { return kQueryBuffers * rows * kQueryStride; }
  // Of a block: the rings of its warps, then these, then their queries.
  static size_t bytes(int warps, int stages, int rows) {
    return kAlignment +
           size_t{1} * warps * (stages * kSliceBytes + sizeof(PieceShared) + query_bytes(rows));
  }
};

}  // namespace nanovllm::cuda::key_pieces
