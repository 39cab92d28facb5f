// What linear.cc asks of the kernels of one instruction set. Files that are compiled for a special
// instruction set include this: plain declarations only, but for an unnamed namespace (see
// linear_loops.h).
//
// Weights are packed in panels of 32 columns (output features), 128 bytes a step:
//
//   bfloat16   [panels][steps][32][2]   step s holds k = 2s and 2s + 1 of each column side by side
//   float32    [panels][steps][32]      step s holds k = s
//
// Steps are a multiple of 16 and panels are whole; what K and N lack is zeros. Where the kernels
// can decode them, bfloat16 panels are coded (see coded_weights.h). Every kernel adds a
// column's products in an order of its own that is the same for any number of rows, so that a
// row's result never depends on the rows beside it: in the order of the steps to one float32
// accumulator, or as AMX does (linear_amx_few_rows.h).
//
// Activations come as rows (AMX reads them so) or packed in tiles of a few rows, so that a kernel
// reads both its streams in order: for each step the values of all the tile's rows, as bfloat16
// pairs where the kernel multiplies bfloat16, as float32 where it does not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/linear/code_panels.h"
#include "backend/cpu/linear/coded_weights.h"
#include "backend/cpu/linear/weight_streams.h"

namespace nanovllm {

inline constexpr int kPanelColumns = 32;
inline constexpr int kPanelStepBytes = 128;
inline constexpr int kStepMultiple = 16;
inline constexpr int64_t kMinScratchBytes = 8192;

// How rows are cut into tiles: the first num_larger have rows + 1 rows, the others `rows`.
struct RowTiling {
  int64_t rows;
  int64_t num_larger;
};

namespace {

inline int64_t first_row(const RowTiling& tiling, int64_t tile) {
  const int64_t larger = tile < tiling.num_larger ? tile : tiling.num_larger;
  return tile * tiling.rows + larger;
}
inline int64_t rows_of(const RowTiling& tiling, int64_t tile) {
  return tiling.rows + (tile < tiling.num_larger);
}

}  // namespace

// The product of some row tiles with some neighbouring panels: what one task computes.
struct LinearBlock {
  const char* a;        // packed activations of row 0, or row 0 itself
  int64_t a_row_bytes;  // of one row; tiles are as long as their rows together
  RowTiling tiling;
  int64_t first_tile;
  int64_t num_tiles;
  const char* b;  // the first panel
  int64_t panel_bytes;
  int64_t num_panels;
  int64_t num_steps;
  const float* bias;    // of the first panel's columns on, padded to whole panels; or null
  char* out;            // row 0 in the first panel's first column
  int64_t out_stride;   // elements from a row to the next
  int64_t num_columns;  // from the first panel on; the last panel may be part padding
  bool out_is_bf16;
  WeightStreams streams;
  // Of coded panels: the patches of each, from the first on, and room for the decoded weights of
  // one, with several tiles of all, but kMinScratchBytes at least, aligned to 64 bytes. Both are
  // null if panels are plain.
  const WeightPatch* const* patches;
  char* scratch;
  // Of panels of code_panels.h, else null: their layout. `scratch` has room for one of them
  // decoded, and `totals` [panels][rows of the tiles][32] for products of parts of them.
  const CodePanels* codes;
  float* totals;
  // [tiles][groups][rows], the sums of the activations over each group; null if there are no
  // offsets.
  const float* sums;
};

enum class RowFormat {
  kTilePairs,   // [tiles][steps][rows][2] bfloat16
  kTileFloats,  // [tiles][k][rows] float32
  kRows,        // [rows][2 * steps] bfloat16
};

// How products with panels of one kind are computed.
struct LinearPath {
  void (*multiply)(const LinearBlock& block);
  RowFormat format;
  int tile_rows;  // at most, a tile
  // If panels are in the codes of code_panels.h, and multiply() is for plain ones: it makes a plain
  // one of so many steps, the weights that MatrixDecoder::decode gives, of bfloat16 rounded.
  void (*decode)(const CodePanels& shape, const char* panel, int64_t num_steps,
                 char* out) = nullptr;
};

struct LinearKernels {
  // With weights in numbers, plain panels or those of coded_weights.h.
  LinearPath bf16, f32;
  // With weights in the codes of code_panels.h, and activations of bfloat16 or float32.
  LinearPath codes_bf16, codes_f32;
  // out[d * stride + r] = rows[r][d] for d < count (a multiple of 16) and r < num_rows <= 32, in
  // elements of 4 bytes. With past_caches `out` is written so where the kernel can; then it is
  // aligned to 64 bytes, and num_rows and stride are 32.
  void (*transpose)(const void* const* rows, int num_rows, int64_t count, void* out, int64_t stride,
                    bool past_caches);
  // See code_panel_avx2; null where the kernels read plain panels only.
  int64_t (*code_panel)(const char* plain, int64_t num_steps, char* coded, WeightPatch* patches);
  // Conversions of n elements, bfloat16 rounded to nearest even.
  void (*bf16_to_f32)(const void* in, float* out, int64_t n);
  void (*f16_to_f32)(const void* in, float* out, int64_t n);
  void (*f32_to_bf16)(const void* in, uint16_t* out, int64_t n);
};

void linear_bf16_portable(const LinearBlock& block);
void linear_f32_portable(const LinearBlock& block);
void transpose_portable(const void* const* rows, int num_rows, int64_t count, void* out,
                        int64_t stride, bool past_caches);
void bf16_to_f32_portable(const void* in, float* out, int64_t n);
void f16_to_f32_portable(const void* in, float* out, int64_t n);
void f32_to_bf16_portable(const void* in, uint16_t* out, int64_t n);

void linear_bf16_avx2(const LinearBlock& block);
void linear_f32_avx2(const LinearBlock& block);
void linear_codes_avx2(const LinearBlock& block);  // activations are float32
void transpose_avx2(const void* const* rows, int num_rows, int64_t count, void* out, int64_t stride,
                    bool past_caches);
void bf16_to_f32_avx2(const void* in, float* out, int64_t n);
void f16_to_f32_avx2(const void* in, float* out, int64_t n);
void f32_to_bf16_avx2(const void* in, uint16_t* out, int64_t n);

void linear_bf16_avx512(const LinearBlock& block);
void linear_f32_avx512(const LinearBlock& block);
void linear_codes_avx512(const LinearBlock& block);  // activations are float32
void decode_rounded_avx512(const CodePanels& shape, const char* panel, int64_t num_steps,
                           char* out);
void transpose_avx512(const void* const* rows, int num_rows, int64_t count, void* out,
                      int64_t stride, bool past_caches);

void linear_bf16_avx512bf16(const LinearBlock& block);
void linear_codes_avx512bf16(const LinearBlock& block);  // activations are bfloat16

void linear_bf16_amx(const LinearBlock& block);

}  // namespace nanovllm
