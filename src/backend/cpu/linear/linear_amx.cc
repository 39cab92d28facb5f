// Matrix products with AMX: 16 x 16 results from 16 x 32 activations and 32 x 16 weights in one
// instruction. A packed panel holds two such tiles of weights side by side, every 16 steps. Very
// few rows are linear_amx_few_rows.h's.
#include <immintrin.h>

#include "backend/cpu/linear/linear_amx_few_rows.h"
#include "backend/cpu/linear/linear_avx512_ops.h"
#include "backend/cpu/linear/linear_loops.h"

namespace nanovllm {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row: 16 float32, or 32 bfloat16
constexpr int64_t kBlockBytes = kTileSteps * kPanelStepBytes;
constexpr int64_t kPrefetchBytes = 8192;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 and 1 hold the results of the upper rows with a panel. Tiles 2 and 3 hold those of the
// lower rows with the same panel or, where there are no lower rows, those of the upper rows with
// the next panel. 4 and 5 are the activations, 6 and 7 the weights.
void configure(int upper_rows, int lower_rows) {
  TileConfig config;
  const int second = lower_rows > 0 ? lower_rows : upper_rows;
  const int rows[8] = {upper_rows, upper_rows, second, second, upper_rows, second, 16, 16};
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = static_cast<uint8_t>(rows[i]);
    config.row_bytes[i] = kTileBytes;
  }
  // The intrinsic tells the compiler of the first bytes only; this makes it write them all before.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// A panel's weights as tiles are loaded from them. The first row tile finds them in memory: it
// fetches plain ones into the caches, and decodes coded ones into block.scratch.
class Weights {
 public:
  Weights(const LinearBlock& block, int64_t panel, bool is_first)
      : is_first_(is_first), plain_(block.b + panel * block.panel_bytes) {
    fetch_ = plain_ + kPrefetchBytes;
    if (block.patches == nullptr) return;
    source_ = CodedPanel(plain_, block.patches[panel]);
    fetch_bytes_ = kTileSteps / kUnitSteps * kUnitBytes;
    // A single row tile leaves nothing for others and stays within the first-level cache.
    const bool keeps = block.num_tiles > 1;
    mask_ = keeps ? -1 : kHalves * kBlockBytes - 1;
    decoded_ = block.scratch + (keeps ? panel * block.num_steps * kPanelStepBytes
                                      : panel % kPanels * kHalves * kBlockBytes);
    plain_ = decoded_;
    if (!is_first) return;
    num_units_ = static_cast<uint32_t>(block.num_steps / kUnitSteps);
    decode(0);
  }

  // The next 16 steps.
  const char* next() {
    const char* now = plain_ + (offset_ & mask_);
    offset_ += kBlockBytes;
    if (is_first_) {
#pragma GCC unroll 1
      for (int64_t i = 0; i < fetch_bytes_; i += 64) _mm_prefetch(fetch_ + i, _MM_HINT_T1);
      fetch_ += fetch_bytes_;
      // One ahead, so that vector units and tiles work at the same time.
      if (unit_ < num_units_) decode(offset_ & mask_);
    }
    return now;
  }

 private:
  static constexpr int64_t kPanels = 2, kHalves = 2;  // side by side; one decoded, one in use
  static_assert(kMinScratchBytes >= kPanels * kHalves * kBlockBytes);
  static_assert(kStepMultiple % kTileSteps == 0);

  void decode(int64_t offset) {
    // The intrinsics for tiles do not tell the compiler that they read memory: what they read must
    // not be overwritten before, nor written after.
    __asm__ volatile("" : : : "memory");
    char* out = decoded_ + offset;
    for (const uint32_t end = unit_ + kTileSteps / kUnitSteps; unit_ < end; ++unit_) {
      __m512i w[4];
      source_.next(unit_, 0, w);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, out += 64) _mm512_store_si512(out, w[i]);
    }
    __asm__ volatile("" : : : "memory");
  }

  const bool is_first_;
  const char* plain_;
  const char* fetch_;
  int64_t fetch_bytes_ = kBlockBytes;
  int64_t offset_ = 0, mask_ = -1;
  CodedPanel source_;
  char* decoded_ = nullptr;
  uint32_t unit_ = 0, num_units_ = 0;  // to decode; none if the panel is plain
};

void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Results of one pass: [2][16][32] float32, the halves being tiles 0 and 1, and tiles 2 and 3.
struct alignas(64) Results {
  float values[2][kTileRows][kPanelColumns];
};

void store_tiles(Results& results) {
  constexpr int kStride = kPanelColumns * 4;
  _tile_stored(0, &results.values[0][0][0], kStride);
  _tile_stored(1, &results.values[0][0][16], kStride);
  _tile_stored(2, &results.values[1][0][0], kStride);
  _tile_stored(3, &results.values[1][0][16], kStride);
}

void two_row_tiles(const LinearBlock& block, const char* a, Weights weights, Results& results) {
  const char* lower = a + kTileRows * block.a_row_bytes;
  zero_tiles();
  for (int64_t s = 0; s < block.num_steps; s += kTileSteps) {
    const char* b = weights.next();
    _tile_loadd(6, b, kPanelStepBytes);
    _tile_loadd(4, a, block.a_row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower, block.a_row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, b + kTileBytes, kPanelStepBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    a += kTileBytes;
    lower += kTileBytes;
  }
  store_tiles(results);
}

void two_panels(const LinearBlock& block, const char* a, Weights left, Weights right,
                Results& results) {
  zero_tiles();
  for (int64_t s = 0; s < block.num_steps; s += kTileSteps) {
    const char* b = left.next();
    const char* next = right.next();
    _tile_loadd(4, a, block.a_row_bytes);
    _tile_loadd(6, b, kPanelStepBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, kPanelStepBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, next, kPanelStepBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, next + kTileBytes, kPanelStepBytes);
    _tile_dpbf16ps(3, 4, 7);
    a += kTileBytes;
  }
  store_tiles(results);
}

void one_tile(const LinearBlock& block, const char* a, Weights weights, Results& results) {
  zero_tiles();
  for (int64_t s = 0; s < block.num_steps; s += kTileSteps) {
    const char* b = weights.next();
    _tile_loadd(4, a, block.a_row_bytes);
    _tile_loadd(6, b, kPanelStepBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileBytes, kPanelStepBytes);
    _tile_dpbf16ps(1, 4, 7);
    a += kTileBytes;
  }
  store_tiles(results);
}

// The results of `num_rows` rows from `row` on, `stride` apart, with the columns of `panel`.
void write_out(const LinearBlock& block, const float* results, int64_t stride, int64_t row,
               int num_rows, int64_t panel) {
  LinearLoops<Avx512Ops>::write_out(block, row, num_rows, panel * kPanelColumns, kPanelColumns,
                                    results, stride);
}
void write_half(const LinearBlock& block, const Results& results, int half, int64_t row,
                int num_rows, int64_t panel) {
  write_out(block, &results.values[half][0][0], kPanelColumns, row, num_rows, panel);
}

// Up to 32 rows with all panels of the block.
void all_panels(const LinearBlock& block, int64_t row, int num_rows, bool is_first) {
  const int upper = num_rows < kTileRows ? num_rows : kTileRows;
  const int lower = num_rows - upper;
  const char* a = block.a + row * block.a_row_bytes;
  Results results;
  configure(upper, lower);
  int64_t panel = 0;
  if (lower > 0) {
    for (; panel < block.num_panels; ++panel) {
      two_row_tiles(block, a, Weights(block, panel, is_first), results);
      write_half(block, results, 0, row, upper, panel);
      write_half(block, results, 1, row + upper, lower, panel);
    }
    return;
  }
  for (; panel + 2 <= block.num_panels; panel += 2) {
    two_panels(block, a, Weights(block, panel, is_first), Weights(block, panel + 1, is_first),
               results);
    write_half(block, results, 0, row, upper, panel);
    write_half(block, results, 1, row, upper, panel + 1);
  }
  if (panel < block.num_panels) {
    one_tile(block, a, Weights(block, panel, is_first), results);
    write_half(block, results, 0, row, upper, panel);
  }
}

template <int rows = FewRows::kMaxRows>
void few_rows(const LinearBlock& block, int64_t wanted) {
  if constexpr (rows > 1) {
    if (wanted < rows) return few_rows<rows - 1>(block, wanted);
  }
  constexpr int kAtOnce = FewRows::panels_at_once(rows);
  const int64_t row = first_row(block.tiling, block.first_tile);
  const char* a = block.a + row * block.a_row_bytes;
  alignas(64) float results[rows * kAtOnce * kPanelColumns];
  int64_t panel = 0;
  for (; panel + kAtOnce <= block.num_panels; panel += kAtOnce) {
    FewRows::multiply<rows, kAtOnce>(block, a, panel, results);
    for (int i = 0; i < kAtOnce; ++i) {
      write_out(block, results + i * kPanelColumns, kAtOnce * kPanelColumns, row, rows, panel + i);
    }
  }
  for (; panel < block.num_panels; ++panel) {
    FewRows::multiply<rows, 1>(block, a, panel, results);
    write_out(block, results, kPanelColumns, row, rows, panel);
  }
}

}  // namespace

void linear_bf16_amx(const LinearBlock& block) {
  const int64_t rows = rows_of(block.tiling, block.first_tile);
  if (block.num_tiles == 1 && rows <= FewRows::kMaxRows) return few_rows(block, rows);
  for (int64_t i = block.first_tile; i < block.first_tile + block.num_tiles; ++i) {
    all_panels(block, first_row(block.tiling, i), static_cast<int>(rows_of(block.tiling, i)),
               i == block.first_tile);
  }
  _tile_release();
}

}  // namespace nanovllm
