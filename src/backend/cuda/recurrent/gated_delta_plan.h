// How the gated delta rule is divided: a pure function of shapes and of what a device has.
#pragma once

#include <cstddef>

#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/recurrent/delta_layout.h"

namespace nanovllm::cuda {

// Few rows of a sequence: a block a value head, which takes so many rows at once. How many it is,
// and who takes them, changes no bit.
struct GatedDeltaPlan {
  int rows = 0;
  int num_threads = 0;  // of a block
  size_t shared_bytes = 0;
  // Of a block that takes a long sequence chunk by chunk, for so many values; 0 = such ones are not
  // apart.
  int chunk_values = 0;
  size_t chunk_bytes = 0;
  // Whether there may be long sequences: what later steps need of their rows is kept last.
  bool finishes = false;

  bool operator==(const GatedDeltaPlan&) const = default;
};
constexpr int kManyDeltaRows = 16;

// Of a step with up to max_query_len rows a sequence, of which num_prompts may have more than one.
GatedDeltaPlan plan_gated_delta(const StateSpec& spec, int num_prompts, int max_query_len,
                                const DeviceTraits& device);
const char* to_string(const GatedDeltaPlan& plan);

// A block's shared memory: offsets in bytes, and strides of rows in elements. Rows of 16 bytes
// behind each other lie in different banks.
struct DeltaShared {
  // So many rows at once; act has elements of so many bytes.
  constexpr DeltaShared(int key_dim, int value_dim, int num_rows, int element)
      : key_stride(key_dim + 16 / element),
        value_stride(value_dim + 4),
        weight_stride(num_rows > 1 ? 2 * num_rows + 4 : 2) {
    const int key_row = key_stride * element, value_row = value_stride * 4;
    vectors = keys + kStateChunk * key_row;
    values = vectors + (2 * num_rows > 16 ? 2 * num_rows : 16) * key_row;
    reads = values + kStateChunk * value_row;
    weights = reads + num_rows * value_row;
    bytes = weights + kStateChunk * weight_stride * 4;
  }

  int key_stride, value_stride, weight_stride;
  // [kStateChunk] float64 sums of g, at offset 0.
  // [2][kManyDeltaRows] float32: beta, and e^G, of the new rows.
  static constexpr int factors = kStateChunk * 8;
  // [kStateChunk][key_stride] act, the chunk's keys.
  static constexpr int keys = factors + 2 * 4 * kManyDeltaRows;
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
