// How the gated delta rule is divided: a pure function of shapes and of what a device has.
#pragma once

#include <cstddef>

#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/recurrent/delta_layout.h"

namespace nanovllm::cuda {

// A block a sequence and value head, which takes that many rows of the sequence at once. How many
// it is changes no bit.
struct GatedDeltaPlan {
  int rows = 0;
  int num_threads = 0;  // of a block
  size_t shared_bytes = 0;
  // What later steps need of keys and the convolution's inputs is kept by a kernel of its own,
  // behind all blocks, where a step has so many rows that they would be written over others.
  bool keeps_apart = false;

  bool operator==(const GatedDeltaPlan&) const = default;
};
constexpr int kManyDeltaRows = 16;

// Of a step of up to max_query_len rows a sequence.
GatedDeltaPlan plan_gated_delta(const StateSpec& spec, int max_query_len,
                                const DeviceTraits& device);
// "rows one by one"
const char* to_string(const GatedDeltaPlan& plan);

// A block's shared memory: offsets in bytes, and strides of rows in elements.
struct DeltaShared {
  // kRows at once; act has elements of so many bytes.
  constexpr DeltaShared(int key_dim, int value_dim, int num_rows, int element)
      : rows(num_rows),
        key_stride(key_dim + 16 / element),
        value_stride(value_dim + 4),
        weight_stride(num_rows > 1 ? 2 * num_rows + 4 : 2) {
    const int key_row = key_stride * element, value_row = value_stride * 4;
    factors = kStateChunk * 8;
    keys = factors + 2 * 4 * kManyDeltaRows;
    vectors = keys + kStateChunk * key_row;
    values = vectors + (2 * rows > 16 ? 2 * rows : 16) * key_row;
    reads = values + kStateChunk * value_row;
    weights = reads + rows * value_row;
    bytes = weights + kStateChunk * weight_stride * 4;
  }

  // Rows of 16 bytes behind each other lie in different banks.
  int rows, key_stride, value_stride, weight_stride;
  // [kStateChunk] float64 sums of g, at offset 0.
  // [2][kManyDeltaRows] float32: beta, and e^G, of the new rows.
  int factors;
  // [kStateChunk][key_stride] act, the chunk's keys.
  int keys;
  // [2 rows, 16 at least][key_stride] act, keys of the new rows, then queries.
  int vectors;
  // [kStateChunk][value_stride] float32: u of the chunk's rows; of new ones v, then
  // beta (v - e^G S^T k), before.
  int values;
  // [rows][value_stride] float32: S^T q of the new rows, then o.
  int reads;
  // [kStateChunk][weight_stride] float32: of row i of the chunk, e^(G_t - G_i) k_i.k_t for the new
  // rows t, then the same with q_t.
  int weights;
  int bytes;
};

}  // namespace nanovllm::cuda
