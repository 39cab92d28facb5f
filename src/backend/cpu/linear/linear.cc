// y = x W^T + b: packing of activations, and the division of a product into tasks.
#include <algorithm>
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/linear/linear_pack.h"
#include "backend/cpu/linear/linear_weight.h"
#include "base/check.h"

namespace nanovllm {
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
  WeightStreams streams;
  Tensor out, x;
};

// Bounds the memory for packed rows, and costs one more pass over the weights, which takes far
// less time than the products of so many rows.
constexpr int64_t kMaxRowsAtOnce = 1024;
// Of weights, that a task keeps in the second-level cache while it goes through the rows.
constexpr int64_t kTaskBytes = 512 << 10;
// Panels that a task of one tile has if there are enough: as many as kernels for AVX-512 read at
// once for few rows where several streams are best.
constexpr int64_t kStreams = 4;
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
  std::array<SourceRow, kMaxPackedRows> rows;
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
  const int64_t at_once = num_tiles == 1 ? kStreams : 1;
  d.panels_per_task = std::clamp<int64_t>(
      weight.num_panels / wanted, 1, std::max(at_once, kTaskBytes / weight.plain_panel_bytes()));
  if (d.panels_per_task > at_once) d.panels_per_task -= d.panels_per_task % at_once;
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
  block.streams = p.streams;
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
  const LinearKernels& kernels = linear_kernels(isa_);
  const auto kernel = w.dtype == DType::kBFloat16 ? kernels.bf16 : kernels.f32;
  for (int64_t begin = 0; begin < x.rows(); begin += kMaxRowsAtOnce) {
    const int64_t end = std::min(begin + kMaxRowsAtOnce, x.rows());
    const Product product{kernels, w, weight_streams_, out.slice_rows(begin, end),
                          x.slice_rows(begin, end)};
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
    // Each thread's; see LinearBlock::scratch.
    const int64_t panels_kept = division.tiles_per_task > 1 ? division.panels_per_task : 1;
    const int64_t decoded_bytes = std::max(panels_kept * w.plain_panel_bytes(), kMinScratchBytes);
    char* decoded = nullptr;
    if (w.coded())
      decoded = decoded_panels_.get(static_cast<size_t>(decoded_bytes * pool_.num_threads()));
    pool_.parallel_for(division.panel_tasks * division.row_tasks, [&](int64_t task, int thread) {
      char* scratch = decoded == nullptr ? nullptr : decoded + thread * decoded_bytes;
      kernel(make_block(product, packed, division, task, scratch));
    });
  }
}

}  // namespace nanovllm
