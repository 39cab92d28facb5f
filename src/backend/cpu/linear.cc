// y = x W^T + b: packing of weights and activations, and the division of a product into tasks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/linear_kernels.h"
#include "base/check.h"

namespace nanovllm {
namespace {

struct CpuLinearWeight final : LinearWeight {
  std::unique_ptr<Buffer> panels;  // see linear_kernels.h and, if coded, coded_weights.h
  std::vector<float> bias;         // [N], padded to whole panels; or empty
  int64_t num_panels = 0;
  int64_t num_steps = 0;
  // If coded, [num_panels], else empty.
  std::vector<std::vector<WeightPatch>> patches;
  std::vector<const WeightPatch*> panel_patches;  // where each panel's begin

  bool coded() const { return !panel_patches.empty(); }
  int64_t plain_panel_bytes() const { return num_steps * kPanelStepBytes; }
  int64_t coded_panel_bytes() const {
    return kCodeTableBytes + num_steps / kUnitSteps * kUnitBytes;
  }
  int64_t panel_bytes() const { return coded() ? coded_panel_bytes() : plain_panel_bytes(); }
};

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

const LinearKernels& kernels_of(Isa isa) {
  static constexpr LinearKernels kPortable = {linear_bf16_portable,
                                              RowFormat::kTileFloats,
                                              4,
                                              linear_f32_portable,
                                              4,
                                              transpose_portable,
                                              nullptr,
                                              bf16_to_f32_portable,
                                              f16_to_f32_portable,
                                              f32_to_bf16_portable};
#if defined(__x86_64__)
  static constexpr LinearKernels kAvx2 = {linear_bf16_avx2,
                                          RowFormat::kTileFloats,
                                          5,
                                          linear_f32_avx2,
                                          6,
                                          transpose_avx2,
                                          nullptr,
                                          bf16_to_f32_avx2,
                                          f16_to_f32_avx2,
                                          f32_to_bf16_avx2};
  static constexpr LinearKernels kAvx512 = {linear_bf16_avx512,
                                            RowFormat::kTileFloats,
                                            12,
                                            linear_f32_avx512,
                                            12,
                                            transpose_avx512,
                                            code_panel_avx512,
                                            bf16_to_f32_avx2,
                                            f16_to_f32_avx2,
                                            f32_to_bf16_avx2};
  static constexpr LinearKernels kAvx512Bf16 = {linear_bf16_avx512bf16,
                                                RowFormat::kTilePairs,
                                                12,
                                                linear_f32_avx512,
                                                12,
                                                transpose_avx512,
                                                code_panel_avx512,
                                                bf16_to_f32_avx2,
                                                f16_to_f32_avx2,
                                                f32_to_bf16_avx2};
  static constexpr LinearKernels kAmx = {linear_bf16_amx,
                                         RowFormat::kRows,
                                         32,
                                         linear_f32_avx512,
                                         12,
                                         transpose_avx512,
                                         code_panel_avx512,
                                         bf16_to_f32_avx2,
                                         f16_to_f32_avx2,
                                         f32_to_bf16_avx2};
  switch (isa) {
    case Isa::kAmx:
      return kAmx;
    case Isa::kAvx512Bf16:
      return kAvx512Bf16;
    case Isa::kAvx512:
      return kAvx512;
    case Isa::kAvx2:
      return kAvx2;
    case Isa::kPortable:
      break;
  }
#else
  NANOVLLM_CHECK(isa == Isa::kPortable);
#endif
  return kPortable;
}

// n elements from one dtype to another; bfloat16 is rounded to nearest even.
void convert(const LinearKernels& kernels, const void* in, DType from, void* out, DType to,
             int64_t n) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n) * size_of(to));
  } else if (to == DType::kFloat32) {
    (from == DType::kBFloat16 ? kernels.bf16_to_f32 : kernels.f16_to_f32)(
        in, static_cast<float*>(out), n);
  } else if (from == DType::kFloat32) {
    kernels.f32_to_bf16(in, static_cast<uint16_t*>(out), n);
  } else {
    constexpr int64_t kChunk = 256;
    float floats[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t count = std::min(kChunk, n - i);
      kernels.f16_to_f32(static_cast<const uint16_t*>(in) + i, floats, count);
      kernels.f32_to_bf16(floats, static_cast<uint16_t*>(out) + i, count);
    }
  }
}

// A row of some matrix; a null one counts as zeros.
struct SourceRow {
  const char* data = nullptr;
  DType dtype = DType::kFloat32;
};

constexpr int kMaxRows = 32;  // that are packed together

// A stretch of a row, converted to `dtype`: `columns` elements from `first` on, zeros behind them
// up to num_words words of 4 bytes.
void stage_row(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t columns,
               DType dtype, int64_t num_words, void* out) {
  const int64_t real = row.data == nullptr ? 0 : columns;
  const size_t used = static_cast<size_t>(real) * size_of(dtype);
  if (real > 0)
    convert(kernels, row.data + first * static_cast<int64_t>(size_of(row.dtype)), row.dtype, out,
            dtype, real);
  std::memset(static_cast<char*>(out) + used, 0, static_cast<size_t>(num_words) * 4 - used);
}

// Packs `rows` of `columns` elements, converted to `dtype` and padded with zeros to num_words words
// of 4 bytes: out[w * rows.size() + r] = word w of row r. For past_caches see LinearKernels.
void pack_rows(const LinearKernels& kernels, std::span<const SourceRow> rows, int64_t columns,
               DType dtype, int64_t num_words, void* out, bool past_caches = false) {
  const int num_rows = static_cast<int>(rows.size());
  const int64_t per_word = 4 / static_cast<int64_t>(size_of(dtype));
  if (num_rows == 1) return stage_row(kernels, rows[0], 0, columns, dtype, num_words, out);
  std::array<const void*, kMaxRows> pointers;
  const bool as_they_are = [&] {
    for (const SourceRow& row : rows)
      if (row.data == nullptr || row.dtype != dtype) return false;
    return columns == num_words * per_word;
  }();
  if (as_they_are) {
    for (int r = 0; r < num_rows; ++r) pointers[r] = rows[r].data;
    kernels.transpose(pointers.data(), num_rows, num_words, out, num_rows, past_caches);
    return;
  }
  constexpr int64_t kChunkWords = 128;
  alignas(64) uint32_t staged[kMaxRows][kChunkWords];
  for (int r = 0; r < num_rows; ++r) pointers[r] = staged[r];
  for (int64_t word = 0; word < num_words; word += kChunkWords) {
    const int64_t words = std::min(kChunkWords, num_words - word);
    const int64_t first = word * per_word;
    const int64_t count = std::clamp<int64_t>(columns - first, 0, words * per_word);
    for (int r = 0; r < num_rows; ++r)
      stage_row(kernels, rows[r], first, count, dtype, words, staged[r]);
    kernels.transpose(pointers.data(), num_rows, words,
                      static_cast<char*>(out) + word * num_rows * 4, num_rows, past_caches);
  }
}

// Row n of the stacked pieces, or a null row behind the last.
SourceRow row_of(std::span<const HostMatrix> pieces, int64_t n) {
  for (const HostMatrix& piece : pieces) {
    if (n < piece.rows)
      return {static_cast<const char*>(piece.data) +
                  n * piece.row_stride * static_cast<int64_t>(size_of(piece.dtype)),
              piece.dtype};
    n -= piece.rows;
  }
  return {};
}

// Packs panels of a weight, each on its own.
struct PanelPacker {
  const LinearKernels& kernels;
  std::span<const HostMatrix> pieces;
  const CpuLinearWeight& weight;

  void pack(int64_t panel, void* out, bool past_caches) const {
    std::array<SourceRow, kPanelColumns> rows;
    for (int i = 0; i < kPanelColumns; ++i) rows[i] = row_of(pieces, panel * kPanelColumns + i);
    pack_rows(kernels, rows, weight.in_features, weight.dtype, weight.num_steps, out, past_caches);
  }
};

// A patch costs a product of one row as much time as memory takes for some 200 bytes, and coding
// saves 64 bytes in 128 weights. A weight with more patches than this stays plain; no single panel
// may have more than 32 times as many.
constexpr int64_t kWeightsPerPatch = 512;

// Codes all panels, or returns false if that takes too many patches.
bool pack_coded(ThreadPool& pool, const PanelPacker& packer, CpuLinearWeight& weight) {
  struct Staging {
    std::unique_ptr<Buffer> plain;
    std::vector<WeightPatch> patches;
  };
  const int64_t bytes = weight.coded_panel_bytes();
  const int64_t max_of_panel = weight.num_steps * kPanelColumns * 2 * 32 / kWeightsPerPatch;
  const int64_t max_patches = weight.num_panels * max_of_panel / 32;
  weight.panels = allocate_host(static_cast<size_t>(weight.num_panels * bytes));
  std::vector<Staging> staging(static_cast<size_t>(pool.num_threads()));
  for (Staging& of_thread : staging) {
    of_thread.plain = allocate_host(static_cast<size_t>(weight.plain_panel_bytes()));
    of_thread.patches.resize(static_cast<size_t>(max_of_panel) + 1);
  }
  std::vector<std::vector<WeightPatch>> patches(static_cast<size_t>(weight.num_panels));
  std::atomic<int64_t> num_patches = 0;
  pool.parallel_for(weight.num_panels, [&](int64_t panel, int thread) {
    if (num_patches > max_patches) return;
    auto& [plain, list] = staging[thread];
    packer.pack(panel, plain->data(), false);
    const int64_t count = packer.kernels.code_panel(
        static_cast<const char*>(plain->data()), weight.num_steps,
        static_cast<char*>(weight.panels->data()) + panel * bytes, list.data(), max_of_panel);
    num_patches += count < 0 ? max_patches + 1 : count;
    patches[panel].assign(list.begin(), list.begin() + std::max<int64_t>(count, 0) + 1);
  });
  if (num_patches > max_patches) return false;
  weight.patches = std::move(patches);
  weight.panel_patches.reserve(weight.patches.size());
  for (const auto& list : weight.patches) weight.panel_patches.push_back(list.data());
  return true;
}

void pack_plain(ThreadPool& pool, const PanelPacker& packer, CpuLinearWeight& weight) {
  const int64_t bytes = weight.plain_panel_bytes();
  weight.panels = allocate_host(static_cast<size_t>(weight.num_panels * bytes));
  pool.parallel_for(weight.num_panels, [&](int64_t panel, int) {
    packer.pack(panel, static_cast<char*>(weight.panels->data()) + panel * bytes, true);
  });
}

}  // namespace

std::unique_ptr<LinearWeight> CpuBackend::make_linear(std::span<const HostMatrix> pieces,
                                                      const float* bias, DType dtype) {
  NANOVLLM_CHECK(!pieces.empty());
  NANOVLLM_CHECK(dtype == DType::kBFloat16 || dtype == DType::kFloat32);
  auto weight = std::make_unique<CpuLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces[0].cols;
  for (const HostMatrix& piece : pieces) {
    NANOVLLM_CHECK(piece.cols == weight->in_features && piece.dtype != DType::kInt32);
    weight->out_features += piece.rows;
  }
  const int64_t n = weight->out_features, k = weight->in_features;
  weight->num_panels = divide_up(n, kPanelColumns);
  weight->num_steps = round_up(dtype == DType::kBFloat16 ? divide_up(k, 2) : k, kStepMultiple);
  if (bias != nullptr) {
    weight->bias.assign(static_cast<size_t>(weight->num_panels * kPanelColumns), 0.0f);
    std::copy(bias, bias + n, weight->bias.begin());
  }
  const LinearKernels& kernels = kernels_of(isa_);
  const PanelPacker packer{kernels, pieces, *weight};
  const bool may_code = dtype == DType::kBFloat16 && kernels.code_panel != nullptr;
  if (!may_code || !pack_coded(pool_, packer, *weight)) pack_plain(pool_, packer, *weight);
  weight->bytes = static_cast<int64_t>(weight->panels->bytes());
  return weight;
}

namespace {

// Where the rows of a product lie in memory for the kernel.
struct PackedRows {
  RowFormat format;
  int64_t row_bytes;
  RowTiling tiling;
  int64_t num_tiles;
  const char* data;
};

// One product of at most kMaxRowsAtOnce rows.
struct Product {
  const LinearKernels& kernels;
  const CpuLinearWeight& weight;
  Tensor out, x;
};

// Bounds the memory for packed rows, and costs one more pass over the weights, which takes far
// less time than the products of so many rows.
constexpr int64_t kMaxRowsAtOnce = 1024;
// Of weights, that a task keeps in the second-level cache while it goes through the rows.
constexpr int64_t kTaskBytes = 512 << 10;
// Packing less than this is quicker than waking another thread.
constexpr int64_t kParallelPackBytes = 64 << 10;

PackedRows plan_rows(const Product& p) {
  const bool bf16 = p.weight.dtype == DType::kBFloat16;
  const int64_t rows = p.x.rows();
  PackedRows packed;
  packed.format = bf16 ? p.kernels.bf16_format : RowFormat::kTileFloats;
  const int64_t words = bf16 && packed.format == RowFormat::kTileFloats ? 2 : 1;
  packed.row_bytes = p.weight.num_steps * words * 4;
  packed.num_tiles = divide_up(rows, bf16 ? p.kernels.bf16_tile_rows : p.kernels.f32_tile_rows);
  packed.tiling = {rows / packed.num_tiles, rows % packed.num_tiles};
  packed.data = nullptr;
  return packed;
}

// Whether the rows already are what the kernel reads.
bool usable_as_they_are(const Product& p, const PackedRows& packed) {
  const bool same_order = packed.format == RowFormat::kRows || p.x.rows() == 1;
  const DType wanted = packed.format == RowFormat::kTileFloats ? DType::kFloat32 : DType::kBFloat16;
  return same_order && p.x.dtype == wanted &&
         p.weight.in_features * static_cast<int64_t>(size_of(wanted)) == packed.row_bytes;
}

void pack_tile(const Product& p, const PackedRows& packed, int64_t tile, char* out) {
  const DType dtype = packed.format == RowFormat::kTileFloats ? DType::kFloat32 : DType::kBFloat16;
  const int64_t begin = first_row(packed.tiling, tile);
  const int64_t end = first_row(packed.tiling, tile + 1);
  const int64_t columns = p.weight.in_features;
  std::array<SourceRow, kMaxRows> rows;
  for (int64_t r = begin; r < end; ++r)
    rows[r - begin] = {p.x.as<char>() + r * columns * static_cast<int64_t>(size_of(p.x.dtype)),
                       p.x.dtype};
  if (packed.format != RowFormat::kRows) {
    pack_rows(p.kernels, std::span(rows).first(end - begin), columns, dtype, packed.row_bytes / 4,
              out + begin * packed.row_bytes);
    return;
  }
  for (int64_t r = begin; r < end; ++r)
    pack_rows(p.kernels, std::span(rows).subspan(r - begin, 1), columns, dtype,
              packed.row_bytes / 4, out + r * packed.row_bytes);
}

// How a product is cut into tasks: panels first, so that the weights are read once, and rows too
// where that leaves threads without work.
struct Division {
  int64_t panels_per_task;
  int64_t panel_tasks;
  int64_t tiles_per_task;
  int64_t row_tasks;
};

Division divide(const CpuLinearWeight& weight, int64_t num_tiles, int num_threads) {
  // Enough that a thread which comes late costs little.
  const int64_t wanted = num_threads == 1 ? 1 : int64_t{4} * num_threads;
  Division d;
  d.panels_per_task = std::clamp<int64_t>(
      weight.num_panels / wanted, 1, std::max<int64_t>(1, kTaskBytes / weight.plain_panel_bytes()));
  d.panel_tasks = divide_up(weight.num_panels, d.panels_per_task);
  d.tiles_per_task = divide_up(num_tiles, divide_up(wanted, d.panel_tasks));
  d.row_tasks = divide_up(num_tiles, d.tiles_per_task);
  return d;
}

LinearBlock make_block(const Product& p, const PackedRows& packed, const Division& d, int64_t task,
                       char* scratch) {
  const CpuLinearWeight& w = p.weight;
  const int64_t tile = task % d.row_tasks * d.tiles_per_task;
  const int64_t panel = task / d.row_tasks * d.panels_per_task;
  const int64_t column = panel * kPanelColumns;
  LinearBlock block;
  block.a = packed.data;
  block.a_row_bytes = packed.row_bytes;
  block.tiling = packed.tiling;
  block.first_tile = tile;
  block.num_tiles = std::min(d.tiles_per_task, packed.num_tiles - tile);
  block.b = static_cast<const char*>(w.panels->data()) + panel * w.panel_bytes();
  block.panel_bytes = w.panel_bytes();
  block.num_panels = std::min(d.panels_per_task, w.num_panels - panel);
  block.num_steps = w.num_steps;
  block.bias = w.bias.empty() ? nullptr : w.bias.data() + column;
  block.out = p.out.as<char>() + column * static_cast<int64_t>(size_of(p.out.dtype));
  block.out_stride = w.out_features;
  block.num_columns = w.out_features - column;
  block.out_is_bf16 = p.out.dtype == DType::kBFloat16;
  block.patches = w.coded() ? w.panel_patches.data() + panel : nullptr;
  block.scratch = scratch;
  return block;
}

}  // namespace

char* CpuBackend::Scratch::get(size_t bytes) {
  if (buffer_ == nullptr || buffer_->bytes() < bytes) {
    buffer_.reset();
    buffer_ = allocate_host(bytes);
  }
  return static_cast<char*>(buffer_->data());
}

void CpuBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CpuLinearWeight&>(weight);
  NANOVLLM_CHECK(x.rows() == out.rows() && x.row_size() == w.in_features &&
                 out.row_size() == w.out_features);
  const LinearKernels& kernels = kernels_of(isa_);
  const auto kernel = w.dtype == DType::kBFloat16 ? kernels.bf16 : kernels.f32;
  for (int64_t begin = 0; begin < x.rows(); begin += kMaxRowsAtOnce) {
    const int64_t end = std::min(begin + kMaxRowsAtOnce, x.rows());
    const Product product{kernels, w, out.slice_rows(begin, end), x.slice_rows(begin, end)};
    PackedRows packed = plan_rows(product);
    if (usable_as_they_are(product, packed)) {
      packed.data = product.x.as<char>();
    } else {
      const int64_t bytes = (end - begin) * packed.row_bytes;
      char* rows = packed_rows_.get(static_cast<size_t>(bytes));
      const auto pack = [&](int64_t tile, int) { pack_tile(product, packed, tile, rows); };
      if (bytes < kParallelPackBytes)
        for (int64_t tile = 0; tile < packed.num_tiles; ++tile) pack(tile, 0);
      else
        pool_.parallel_for(packed.num_tiles, pack);
      packed.data = rows;
    }
    const Division division = divide(w, packed.num_tiles, pool_.num_threads());
    const int64_t decoded_bytes =
        w.coded() ? std::max(division.panels_per_task * w.plain_panel_bytes(), kMinScratchBytes)
                  : 0;
    char* decoded = decoded_panels_.get(static_cast<size_t>(decoded_bytes * pool_.num_threads()));
    pool_.parallel_for(division.panel_tasks * division.row_tasks, [&](int64_t task, int thread) {
      kernel(make_block(product, packed, division, task, decoded + thread * decoded_bytes));
    });
  }
}

}  // namespace nanovllm
