// How a block that goes through a sequence chunk by chunk divides its shared memory.
#pragma once

#include "backend/cuda/recurrent/delta_layout.h"

namespace nanovllm::cuda {

// Of a head, a block's: fewer where there would be too few blocks.
constexpr int kSliceValues = 64, kFewSliceValues = 32;

// Offsets and sizes in bytes, strides in elements. Rows of 16 bytes behind each other lie in
// different banks.
struct ChunkShared {
  constexpr ChunkShared(int key_dim, int slice_values) : key_stride(key_dim + 8) {
    const int value_stride = stride_of(slice_values);
    keys_bytes = 2 * kStateChunk * key_stride * 2;
    values = keys + 2 * keys_bytes;
    reads = values + 2 * kStateChunk * value_stride * 4;
    weights = reads + kStateChunk * value_stride * 4;
    bytes = weights + kStateChunk * kWeightStride * 4;
  }

  static constexpr int stride_of(int slice_values) { return slice_values + 4; }  // of values
  static constexpr int kWeightStride = 2 * kStateChunk + 4;

  // Of two chunks each: [kStateChunk] float64 sums of g, at offset 0.
  // [5][kStateChunk] float32: beta, e^G, e^(sum of all - G), and as SplitSum G.
  static constexpr int kFactors = 2 * kStateChunk * 8;
  // [kStateChunk] DeltaGate, of new rows.
  static constexpr int kGates = kFactors + 2 * 5 * kStateChunk * 4;
  // [2][kStateChunk][key_stride] act: keys, then queries.
  static constexpr int keys = kGates + 2 * kStateChunk * int{sizeof(DeltaGate)};
  int key_stride, keys_bytes;
  // [kStateChunk][value stride] float32: v; then beta (v - e^G S^T k); then u, which rows of the
  // log have from the start.
  int values;
  // Of one: [kStateChunk][value stride] float32: S^T q.
  int reads;
  // [kStateChunk][kWeightStride] float32: of row i e^(G_t - G_i) k_i.k_t of all rows t from i on,
  // in the order of t % 16, t / 16, then the same with q_t; zeros for earlier ones of the same 16.
  int weights;
  int bytes;
};

}  // namespace nanovllm::cuda
