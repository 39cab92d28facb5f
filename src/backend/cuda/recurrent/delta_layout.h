// Where a recurrent layer's states and logs lie in device memory.
#pragma once

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm::cuda {

// What heads may have; check_shapes.h refuses models with others.
constexpr int kMaxStateKeyDim = 128, kMaxStateValueDim = 192, kMaxConvWidth = 4;

// Steps of no more new rows a sequence overwrite nothing of a log that they read, whatever the
// order of their blocks.
constexpr int kShortDeltaRows = kMaxDraftRows;

// A slot:  of each value head its state, float32, as StateTile or [key_dim][value_dim];
//          [conv_width - 1][num_channels] act, the convolution's inputs before the next chunk.
// A log:   [num_key_heads][kKeyRing][key_dim] act, the keys of the chunk: of position p in row
//          p % kKeyRing;
//          [num_value_heads][kStateChunk][value_dim] float32, what its rows add (u);
//          [num_value_heads][kStateChunk] float64, sums of g since the chunk's start;
//          [ring_rows][num_channels] act, inputs of the convolution: of position p in row
//          p % ring_rows.
// key_dim and value_dim are padded with zeros to tiles of tensor cores. Keys and the convolution's
// inputs are read by several blocks of threads: in rings, new rows of short sequences leave those
// that another block may still read. Long sequences have blocks that share gates, too, and what
// their logs keep is written by a kernel behind them; but u, whose columns are a block's own.
struct DeltaLayout {
  static constexpr int kKeyRing = kStateChunk + kShortDeltaRows;

  explicit DeltaLayout(const StateSpec& spec)
      : key_dim(padded(spec.key_dim)),
        value_dim(padded(spec.value_dim)),
        ring_rows(spec.conv_width - 1 + kMaxDraftRows),
        num_channels(spec.num_channels()) {
    const auto element = static_cast<int64_t>(size_of(spec.dtype));
    const int64_t row_bytes = num_channels * element;
    conv_rows = aligned(spec.num_value_heads * state_floats() * kFloat);
    slot = aligned(conv_rows + (spec.conv_width - 1) * row_bytes);
    values = aligned(int64_t{spec.num_key_heads} * kKeyRing * key_dim * element);
    gates = aligned(values + int64_t{spec.num_value_heads} * kStateChunk * value_dim * kFloat);
    ring = aligned(gates + int64_t{spec.num_value_heads} * kStateChunk * kDouble);
    log = aligned(ring + ring_rows * row_bytes);
  }

  // Of a head.
  constexpr int64_t state_floats() const { return int64_t{key_dim} * value_dim; }

  // Elements, padded.
  int key_dim, value_dim;
  int ring_rows;
  int64_t num_channels;
  // Bytes, where the parts of a slot and of a log begin, and their sizes.
  int64_t conv_rows, slot;
  int64_t values, gates, ring, log;

 private:
  static constexpr int64_t kFloat = sizeof(float), kDouble = sizeof(double);
  static int padded(int dim) { return (dim + 15) / 16 * 16; }
  static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
};

// What a step's rows are before the state and the chunk's other rows come in. One row is behind the
// other:
//   [num_key_heads][2][key_dim] act, keys and queries, normed;
//   [num_value_heads][value_dim] float32, values, in place of which a chunk's kernel leaves what is
//   read, before its norm and gate;
//   [num_value_heads] DeltaGate.
// key_dim and value_dim are padded with zeros as above.
struct DeltaGate {
  float g, beta;
  double sum;  // of g since the chunk's start, of rows that the log keeps
};
struct DeltaRowLayout {
  DeltaRowLayout(const StateSpec& spec, const DeltaLayout& layout)
      : values(aligned(int64_t{2} * spec.num_key_heads * layout.key_dim *
                       static_cast<int64_t>(size_of(spec.dtype)))),
        gates(aligned(values + int64_t{spec.num_value_heads} * layout.value_dim * 4)),
        bytes(aligned(gates + int64_t{spec.num_value_heads} * int64_t{sizeof(DeltaGate)})) {}

  // Bytes, where the parts of a row begin, and its size.
  int64_t values, gates, bytes;

 private:
  static int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }
};

}  // namespace nanovllm::cuda
