// The loops over row tiles, panels and steps, written once over the vector operations of an
// instruction set. Include it only where `Ops` is a type of an unnamed namespace: then every
// instantiation belongs to its own file and none can leak into code for lesser machines.
//
// Ops gives
//   Vec, A, B         an accumulator, a broadcast activation, a piece of a weight step
//   kLanes            columns of a Vec
//   kRowBytes         bytes of packed activation a row and step
//   kMaxRows          rows of the largest tile
//   vectors(rows)     how many Vecs of columns a tile of so many rows takes at once
//   zero(), load_a<rows>(p), load_b(p), multiply_add(acc, a, b), prefetch(p)
//   store_f32(p, lanes, v), store_bf16(p, lanes, v)   the first `lanes` of v
//   add(v, p)         v + the floats at p
#pragma once

#include "backend/cpu/linear_kernels.h"

namespace nanovllm {

template <typename Ops>
class LinearLoops {
 public:
  static void run(const LinearBlock& block) {
    for (int64_t i = block.first_tile; i < block.first_tile + block.num_tiles; ++i) {
      const bool larger = i < block.tiling.num_larger;
      const int64_t row = i * block.tiling.rows + (larger ? i : block.tiling.num_larger);
      dispatch<Ops::kMaxRows>(block.tiling.rows + larger, block, row, i == block.first_tile);
    }
  }

 private:
  using Vec = typename Ops::Vec;
  static constexpr int kVectorsPerPanel = kPanelColumns / Ops::kLanes;
  static constexpr int kVectorBytes = kPanelStepBytes / kVectorsPerPanel;
  // Memory takes about 100 ns to answer, in which a core that reads 40 GB/s consumes 4 KiB.
  static constexpr int64_t kPrefetchBytes = 4096;

  template <int rows>
  static void dispatch(int64_t wanted, const LinearBlock& block, int64_t row, bool from_memory) {
    if constexpr (rows > 1) {
      if (wanted < rows) return dispatch<rows - 1>(wanted, block, row, from_memory);
    }
    if (from_memory)
      all_panels<rows, true>(block, row);
    else
      all_panels<rows, false>(block, row);
  }

  // A row tile with all the block's panels.
  template <int rows, bool from_memory>
  static void all_panels(const LinearBlock& block, int64_t row) {
    constexpr int kAtOnce = Ops::vectors(rows);
    if constexpr (kAtOnce > kVectorsPerPanel) {
      constexpr int kPanels = kAtOnce / kVectorsPerPanel;
      int64_t panel = 0;
      for (; panel + kPanels <= block.num_panels; panel += kPanels)
        tile<rows, kAtOnce, from_memory>(block, row, panel, 0);
      for (; panel < block.num_panels; ++panel)
        tile<rows, kVectorsPerPanel, from_memory>(block, row, panel, 0);
    } else {
      for (int64_t panel = 0; panel < block.num_panels; ++panel)
        for (int v = 0; v < kVectorsPerPanel; v += kAtOnce)
          tile<rows, kAtOnce, from_memory>(block, row, panel, v);
    }
  }

  // `rows` rows by `vectors` Vecs of columns, from Vec `first` of a panel on. The Vecs are whole
  // panels or lie within one.
  template <int rows, int vectors, bool from_memory>
  static void tile(const LinearBlock& block, int64_t row, int64_t panel, int first) {
    const int64_t panel_bytes = block.num_steps * kPanelStepBytes;
    const char* a = block.a + row * block.a_row_bytes;
    const char* b = block.b + panel * panel_bytes + first * kVectorBytes;
    Vec acc[rows][vectors];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) acc[r][v] = Ops::zero();
    for (int64_t s = 0; s < block.num_steps; ++s) {
      typename Ops::B weights[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const char* p =
            b + (v / kVectorsPerPanel) * panel_bytes + (v % kVectorsPerPanel) * kVectorBytes;
        weights[v] = Ops::load_b(p);
        if (from_memory && (v * kVectorBytes) % 64 == 0) Ops::prefetch(p + kPrefetchBytes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const typename Ops::A x = Ops::template load_a<rows>(a + r * 4);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) acc[r][v] = Ops::multiply_add(acc[r][v], x, weights[v]);
      }
      a += rows * Ops::kRowBytes;
      b += kPanelStepBytes;
    }
    const int64_t column = panel * kPanelColumns + first * Ops::kLanes;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) store(block, row + r, column + v * Ops::kLanes, acc[r][v]);
  }

  static void store(const LinearBlock& block, int64_t row, int64_t column, Vec value) {
    const int64_t left = block.num_columns - column;
    if (left <= 0) return;
    const int lanes = left < Ops::kLanes ? static_cast<int>(left) : Ops::kLanes;
    if (block.bias != nullptr) value = Ops::add(value, block.bias + column);
    const int64_t index = row * block.out_stride + column;
    if (block.out_is_bf16)
      Ops::store_bf16(block.out + index * 2, lanes, value);
    else
      Ops::store_f32(block.out + index * 4, lanes, value);
  }
};

}  // namespace nanovllm
