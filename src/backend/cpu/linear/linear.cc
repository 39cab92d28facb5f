// y = x W^T + b: packing of activations, and the division of a product into tasks.
#include <algorithm>
#include <array>
#include <iterator>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/linear/linear_pack.h"
#include "backend/cpu/linear/linear_product.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Of weights, that a task keeps in the second-level cache while it goes through the rows.
constexpr int64_t kTaskBytes = 512 << 10;
// Panels that a task of one tile has if there are enough: as many as kernels for AVX-512 read at
// once for few rows where several streams are best.
constexpr int64_t kStreams = 4;
// Panels of codes that a task has if there are enough, since it decodes parts of them: then the
// rows are read so much less often.
constexpr int64_t kCodedPanels = 8;
// Packing less than this is quicker than waking another thread.
constexpr int64_t kParallelPackBytes = 64 << 10;

PackedRows plan_rows(const LinearProduct& p, const LinearPath& path) {
  const bool bf16 = p.weight->dtype == DType::kBFloat16;
  const int64_t rows = p.out.rows();
  PackedRows packed;
  packed.format = path.format;
  const int64_t words = bf16 && packed.format == RowFormat::kTileFloats ? 2 : 1;
  packed.row_bytes = p.weight->num_steps * words * 4;
  packed.num_tiles = divide_up(rows, path.tile_rows);
  packed.tiling = {rows / packed.num_tiles, rows % packed.num_tiles};
  packed.data = nullptr;
  return packed;
}

// Whether the rows already are what the kernel reads.
bool usable_as_they_are(const LinearProduct& p, const PackedRows& packed) {
  const bool same_order =
      p.out.rows() == 1 || (packed.format == RowFormat::kRows && p.row_ids == nullptr);
  const DType wanted = packed.format == RowFormat::kTileFloats ? DType::kFloat32 : DType::kBFloat16;
  return same_order && p.x.dtype == wanted &&
         p.weight->in_features * static_cast<int64_t>(size_of(wanted)) == packed.row_bytes;
}

const char* row_of(const LinearProduct& p, int64_t r) {
  const int64_t row = p.row_ids != nullptr ? p.row_ids[r] : r;
  return p.x.as<char>() + row * p.weight->in_features * static_cast<int64_t>(size_of(p.x.dtype));
}

void pack_tile(const LinearProduct& p, const LinearKernels& kernels, const PackedRows& packed,
               int64_t tile) {
  const DType dtype = packed.format == RowFormat::kTileFloats ? DType::kFloat32 : DType::kBFloat16;
  const int64_t begin = first_row(packed.tiling, tile);
  const int64_t end = first_row(packed.tiling, tile + 1);
  const int64_t columns = p.weight->in_features;
  std::array<SourceRow, kMaxPackedRows> rows;
  for (int64_t r = begin; r < end; ++r) rows[r - begin] = {row_of(p, r), p.x.dtype};
  if (packed.format != RowFormat::kRows) {
    pack_rows(kernels, std::span(rows).first(end - begin), columns, dtype, packed.row_bytes / 4,
              packed.memory + begin * packed.row_bytes);
    return;
  }
  for (int64_t r = begin; r < end; ++r) {
    pack_rows(kernels, std::span(rows).subspan(r - begin, 1), columns, dtype, packed.row_bytes / 4,
              packed.memory + r * packed.row_bytes);
  }
}

bool needs_sums(const PlannedProduct& p) {
  return p.part->has_codes() && p.part->codes.has_offsets && p.path->decode == nullptr;
}

int64_t sums_bytes(const PlannedProduct& p) {
  if (!needs_sums(p)) return 0;
  return round_up(p.product.out.rows() * p.part->codes.num_groups * int64_t{sizeof(float)}, 64);
}

// Of what is made of a product's rows.
int64_t packed_bytes(const PlannedProduct& p) {
  const int64_t rows = p.packs_rows ? round_up(p.product.out.rows() * p.packed.row_bytes, 64) : 0;
  return rows + sums_bytes(p);
}

// Whether what is packed for one product is what another needs, as for two parts of a weight.
bool have_equal_rows(const PlannedProduct& a, const PlannedProduct& b) {
  return a.product.weight == b.product.weight && a.product.x.data == b.product.x.data &&
         a.product.row_ids == b.product.row_ids && a.product.out.rows() == b.product.out.rows() &&
         a.packed.format == b.packed.format && a.packed.num_tiles == b.packed.num_tiles;
}

void sum_tile(const PlannedProduct& p, int64_t tile) {
  const CodePanels& shape = p.part->codes;
  const bool to_bf16 = p.packed.format != RowFormat::kTileFloats;
  const int64_t first = first_row(p.packed.tiling, tile);
  const int64_t rows = rows_of(p.packed.tiling, tile);
  float* const sums = p.packed.sums + first * shape.num_groups;
  for (int64_t r = 0; r < rows; ++r) {
    sum_groups(row_of(p.product, first + r), p.product.x.dtype, to_bf16,
               p.product.weight->in_features, shape.group_units * kCodeUnitColumns, sums + r, rows);
  }
}

// Into `wanted` tasks or more, of panels that take so many bytes when they are decoded.
Division divide(const LinearPart& part, int64_t plain_panel_bytes, int64_t num_tiles,
                int64_t wanted) {
  Division d;
  const int64_t at_once = num_tiles == 1 ? kStreams : 1;
  const int64_t fit = kTaskBytes / plain_panel_bytes;
  const int64_t most = part.has_codes() ? std::max(kCodedPanels, fit) : std::max(at_once, fit);
  d.panels_per_task = std::clamp<int64_t>(part.num_panels / wanted, 1, most);
  if (d.panels_per_task > at_once) d.panels_per_task -= d.panels_per_task % at_once;
  d.panel_tasks = divide_up(part.num_panels, d.panels_per_task);
  d.tiles_per_task = divide_up(num_tiles, divide_up(wanted, d.panel_tasks));
  d.row_tasks = divide_up(num_tiles, d.tiles_per_task);
  return d;
}

// Of a thread, for a panel of codes decoded; see LinearBlock::scratch.
int64_t decoded_bytes(const PlannedProduct& p) {
  const CodePanels& shape = p.part->codes;
  const int64_t code_bytes = shape.num_units * kCodeUnitSteps * kPanelStepBytes;
  const int64_t scale_bytes = shape.num_groups * 2 * kPanelColumns * int64_t{sizeof(float)};
  return std::max(p.product.weight->plain_panel_bytes(), code_bytes + scale_bytes);
}

// Likewise; see LinearBlock::totals.
int64_t totals_bytes(const PlannedProduct& p) {
  const int64_t rows = p.division.tiles_per_task * (p.packed.tiling.rows + 1);
  return p.division.panels_per_task * rows * kPanelColumns * int64_t{sizeof(float)};
}

// Of a thread, for what it works on; see LinearBlock::scratch.
int64_t scratch_bytes(const PlannedProduct& p) {
  const int64_t plain_bytes = p.product.weight->plain_panel_bytes();
  const bool several_tiles = p.division.tiles_per_task > 1;
  switch (p.part->layout) {
    case WeightLayout::kPlain:
      return 0;
    case WeightLayout::kCoded12:
      return std::max(plain_bytes * (several_tiles ? p.division.panels_per_task : 1),
                      kMinScratchBytes);
    case WeightLayout::kGroup:
    case WeightLayout::kByte:
    case WeightLayout::kSuper:
      break;
  }
  return decoded_bytes(p) + totals_bytes(p);
}

LinearBlock make_block(const PlannedProduct& p, int64_t task, char* scratch) {
  const CpuLinearWeight& w = *p.product.weight;
  const LinearPart& part = *p.part;
  const Division& d = p.division;
  const int64_t tile = task % d.row_tasks * d.tiles_per_task;
  const int64_t panel = task / d.row_tasks * d.panels_per_task;
  const int64_t column = panel * kPanelColumns;
  const Tensor& out = p.product.out;
  LinearBlock block = {};
  block.a = p.packed.data;
  block.a_row_bytes = p.packed.row_bytes;
  block.tiling = p.packed.tiling;
  block.first_tile = tile;
  block.num_tiles = std::min(d.tiles_per_task, p.packed.num_tiles - tile);
  block.b = static_cast<const char*>(part.panels->data()) + panel * part.panel_bytes;
  block.panel_bytes = part.panel_bytes;
  block.num_panels = std::min(d.panels_per_task, part.num_panels - panel);
  block.num_steps = w.num_steps;
  block.bias = part.bias.empty() ? nullptr : part.bias.data() + column;
  block.out =
      out.as<char>() + (part.first_column + column) * static_cast<int64_t>(size_of(out.dtype));
  block.out_stride = w.out_features;
  block.num_columns = part.num_columns - column;
  block.out_is_bf16 = out.dtype == DType::kBFloat16;
  block.patches = part.patches ? part.panel_patches.data() + panel : nullptr;
  block.scratch = scratch;
  if (part.has_codes()) {
    block.codes = &part.codes;
    block.sums = p.packed.sums;
    block.totals = reinterpret_cast<float*>(scratch + decoded_bytes(p));
  }
  return block;
}

// A product with panels of codes by the kernel for plain ones.
void multiply_decoded(const LinearBlock& block, const LinearPath& path) {
  LinearBlock plain = block;
  plain.b = block.scratch;
  plain.panel_bytes = block.num_steps * kPanelStepBytes;
  plain.num_panels = 1;
  plain.codes = nullptr;
  plain.scratch = nullptr;
  for (int64_t panel = 0; panel < block.num_panels; ++panel) {
    path.decode(*block.codes, block.b + panel * block.panel_bytes, block.num_steps, block.scratch);
    path.multiply(plain);
    if (plain.bias != nullptr) plain.bias += kPanelColumns;
    plain.out += kPanelColumns * (block.out_is_bf16 ? 2 : 4);
    plain.num_columns -= kPanelColumns;
  }
}

// The one of several products, in the order of their first tasks, that a task belongs to.
const PlannedProduct& owner(const std::vector<PlannedProduct>& products,
                            int64_t PlannedProduct::*first, int64_t task) {
  return *std::prev(std::ranges::upper_bound(products, task, {}, first));
}

}  // namespace

void CpuBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CpuLinearWeight&>(weight);
  NANOVLLM_CHECK(x.rows() == out.rows() && x.row_size() == w.in_features &&
                 out.row_size() == w.out_features);
  for (int64_t begin = 0; begin < x.rows(); begin += kMaxRowsAtOnce) {
    const int64_t end = std::min(begin + kMaxRowsAtOnce, x.rows());
    const LinearProduct product = {&w, out.slice_rows(begin, end), x.slice_rows(begin, end)};
    multiply({&product, 1});
  }
}

void CpuBackend::pack_rows_of(std::vector<PlannedProduct>& products) {
  const LinearKernels& kernels = linear_kernels(isa_);
  int64_t bytes = 0, num_tiles = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    PlannedProduct& p = products[i];
    p.first_tile = num_tiles;
    p.packs_rows = !usable_as_they_are(p.product, p.packed) &&
                   (i == 0 || !have_equal_rows(p, products[i - 1]));
    if (p.packs_rows || needs_sums(p)) num_tiles += p.packed.num_tiles;
    bytes += packed_bytes(p);
  }
  char* memory = bytes > 0 ? packed_rows_.get(static_cast<size_t>(bytes)) : nullptr;
  for (size_t i = 0; i < products.size(); ++i) {
    PlannedProduct& p = products[i];
    char* const end = memory + packed_bytes(p);
    if (needs_sums(p)) {
      p.packed.sums = reinterpret_cast<float*>(memory);
      memory += sums_bytes(p);
    }
    if (p.packs_rows) {
      p.packed.data = p.packed.memory = memory;
    } else if (usable_as_they_are(p.product, p.packed)) {
      p.packed.data = row_of(p.product, 0);
    } else {
      p.packed.data = products[i - 1].packed.data;
    }
    memory = end;
  }
  if (num_tiles == 0) return;
  const auto pack = [&](int64_t tile, int) {
    const PlannedProduct& p = owner(products, &PlannedProduct::first_tile, tile);
    if (p.packs_rows) pack_tile(p.product, kernels, p.packed, tile - p.first_tile);
    if (p.packed.sums != nullptr) sum_tile(p, tile - p.first_tile);
  };
  if (bytes >= kParallelPackBytes) return pool_.parallel_for(num_tiles, pack);
  for (int64_t tile = 0; tile < num_tiles; ++tile) pack(tile, 0);
}

void CpuBackend::multiply(std::span<const LinearProduct> products) {
  if (products.empty()) return;
  const LinearKernels& kernels = linear_kernels(isa_);
  const int64_t threads = pool_.num_threads();
  int64_t num_parts = 0;
  for (const LinearProduct& product : products) num_parts += std::ssize(product.weight->parts);
  // Enough that a thread which comes late costs little.
  const int64_t wanted = threads == 1 ? 1 : divide_up(4 * threads, num_parts);
  planned_.clear();
  int64_t num_tasks = 0, decoded_bytes = 0;
  for (const LinearProduct& product : products) {
    for (const LinearPart& part : product.weight->parts) {
      const LinearPath& path = linear_path(kernels, part.layout, product.weight->dtype);
      PlannedProduct& p = planned_.emplace_back(PlannedProduct{
          .product = product, .part = &part, .path = &path, .packed = plan_rows(product, path)});
      p.division = divide(part, product.weight->plain_panel_bytes(), p.packed.num_tiles, wanted);
      p.first_task = num_tasks;
      num_tasks += p.division.panel_tasks * p.division.row_tasks;
      decoded_bytes = std::max(decoded_bytes, scratch_bytes(p));
    }
  }
  pack_rows_of(planned_);
  char* const decoded = decoded_panels_.get(static_cast<size_t>(decoded_bytes * threads));
  pool_.parallel_for(num_tasks, [&](int64_t task, int thread) {
    const PlannedProduct& p = owner(planned_, &PlannedProduct::first_task, task);
    const bool is_plain = p.part->layout == WeightLayout::kPlain;
    LinearBlock block =
        make_block(p, task - p.first_task, is_plain ? nullptr : decoded + thread * decoded_bytes);
    block.streams = weight_streams_;
    if (p.path->decode != nullptr) {
      multiply_decoded(block, *p.path);
    } else {
      p.path->multiply(block);
    }
  });
}

}  // namespace nanovllm
