// Where a recurrent layer's states and logs lie in memory.
#pragma once

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm {

// A slot:  [num_value_heads][key_dim][padded_dim] float32, the states;
//          [conv_width - 1][num_channels] act, the convolution's inputs before the next chunk.
// A log:   [num_key_heads][key_dim][kStateChunk] act, the chunk's keys;
//          [num_value_heads][kStateChunk][padded_dim] float32, what its rows add (u);
//          [num_value_heads][kStateChunk] float64, sums of g since the chunk's start;
//          [ring_rows][num_channels] act, inputs of the convolution: of position p in row
//          p % ring_rows, so that those before a rejected draft are still there.
// Rows are padded to whole vectors; the padding of values is 0. Keys lie as columns because a row's
// products with all keys of the chunk are summed side by side.
struct StateLayout {
  explicit StateLayout(const StateSpec& spec)
      : padded_dim((spec.value_dim + 15) / 16 * 16),
        ring_rows(spec.conv_width - 1 + kMaxDraftRows),
        row_bytes(spec.num_channels() * static_cast<int64_t>(size_of(spec.dtype))),
        state_floats(int64_t{spec.key_dim} * padded_dim),
        key_bytes(int64_t{spec.key_dim} * kStateChunk * static_cast<int64_t>(size_of(spec.dtype))),
        value_floats(int64_t{kStateChunk} * padded_dim) {
    conv_rows = aligned(spec.num_value_heads * state_floats * kFloat);
    slot = aligned(conv_rows + (spec.conv_width - 1) * row_bytes);
    values = aligned(spec.num_key_heads * key_bytes);
    gates = aligned(values + spec.num_value_heads * value_floats * kFloat);
    ring = aligned(gates + int64_t{spec.num_value_heads} * kStateChunk * kDouble);
    log = aligned(ring + ring_rows * row_bytes);
  }

  // Elements.
  int padded_dim;
  int ring_rows;
  // Of a row of the convolution's inputs.
  int64_t row_bytes;
  // Of a head.
  int64_t state_floats, key_bytes, value_floats;
  // Bytes, where the parts of a slot and of a log begin, and their sizes.
  int64_t conv_rows, slot;
  int64_t values, gates, ring, log;

 private:
  static constexpr int64_t kFloat = sizeof(float), kDouble = sizeof(double);
  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

}  // namespace nanovllm
