// Packing of weights into panels, plain or coded.
#include "backend/cpu/linear/linear_weight.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/code_pack.h"
#include "backend/cpu/linear/linear_pack.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Row n of the stacked pieces, or a null row behind the last.
SourceRow row_of(std::span<const HostMatrix> pieces, int64_t n) {
  const auto [piece, row] = find_row(pieces, n);
  if (piece == nullptr) return {};
  if (piece->decoder != nullptr) return {.coded = piece, .row = row};
  return {piece->row_data(row), piece->dtype};
}

// Packs the stacked rows of a weight, a panel at a time.
struct PanelPacker {
  const LinearKernels& kernels;
  std::span<const HostMatrix> pieces;
  DType dtype;
  int64_t num_steps;

  void pack(int64_t panel, void* out, bool past_caches) const {
    std::array<SourceRow, kPanelColumns> rows;
    for (int i = 0; i < kPanelColumns; ++i) rows[i] = row_of(pieces, panel * kPanelColumns + i);
    pack_rows(kernels, rows, pieces[0].cols, dtype, num_steps, out, past_caches);
  }
};

// A patch costs a product of one row as much time as memory takes for some 200 bytes, and coding
// saves 64 bytes in 128 weights. A weight with more patches than this stays plain.
constexpr int64_t kWeightsPerPatch = 512;

// Codes all panels, or returns false if that takes too many patches.
bool pack_coded(ThreadPool& pool, const PanelPacker& packer, HostArena& arena, LinearPart& part) {
  const int64_t panel_bytes = kCodeTableBytes + packer.num_steps / kUnitSteps * kUnitBytes;
  const int64_t plain_bytes = packer.num_steps * kPanelStepBytes;
  const int64_t panel_weights = packer.num_steps * kPanelColumns * 2;
  const int64_t max_patches = part.num_panels * panel_weights / kWeightsPerPatch;
  auto panels = arena.allocate(static_cast<size_t>(part.num_panels * panel_bytes));
  const auto patches =
      allocate_host(static_cast<size_t>(max_patches + part.num_panels) * sizeof(WeightPatch));
  // A plain panel and the most patches it can have, for every thread; what none touches is free.
  const int64_t staging_bytes =
      round_up(plain_bytes + (panel_weights + 1) * int64_t{sizeof(WeightPatch)}, 64);
  const auto staging = allocate_host(static_cast<size_t>(pool.num_threads() * staging_bytes));
  auto* const all_patches = static_cast<WeightPatch*>(patches->data());
  part.panel_patches.resize(static_cast<size_t>(part.num_panels));
  std::atomic<int64_t> num_patches = 0;  // with those that end a panel's list
  const int64_t room = max_patches + part.num_panels;
  pool.parallel_for(part.num_panels, [&](int64_t panel, int thread) {
    if (num_patches > room) return;
    char* plain = static_cast<char*>(staging->data()) + thread * staging_bytes;
    auto* list = reinterpret_cast<WeightPatch*>(plain + plain_bytes);
    packer.pack(panel, plain, false);
    const int64_t count =
        packer.kernels.code_panel(plain, packer.num_steps,
                                  static_cast<char*>(panels->data()) + panel * panel_bytes, list) +
        1;
    const int64_t first = num_patches.fetch_add(count);
    if (first + count > room) return;
    std::copy_n(list, count, all_patches + first);
    part.panel_patches[static_cast<size_t>(panel)] = all_patches + first;
  });
  if (num_patches > room) {
    arena.undo(std::move(panels));
    return false;
  }
  part.panels = std::move(panels);
  const int64_t patch_bytes = num_patches * int64_t{sizeof(WeightPatch)};
  part.patches = arena.allocate(static_cast<size_t>(patch_bytes));
  auto* const kept = static_cast<WeightPatch*>(part.patches->data());
  std::copy_n(all_patches, num_patches.load(), kept);
  for (const WeightPatch*& first : part.panel_patches) first = kept + (first - all_patches);
  part.layout = WeightLayout::kCoded12;
  part.panel_bytes = panel_bytes;
  return true;
}

void pack_plain(ThreadPool& pool, const PanelPacker& packer, HostArena& arena, LinearPart& part) {
  part.panel_bytes = packer.num_steps * kPanelStepBytes;
  part.panels = arena.allocate(static_cast<size_t>(part.num_panels * part.panel_bytes));
  pool.parallel_for(part.num_panels, [&](int64_t panel, int) {
    packer.pack(panel, static_cast<char*>(part.panels->data()) + panel * part.panel_bytes, true);
  });
}

void pack_codes(ThreadPool& pool, const PanelPacker& packer, const CodePanels& shape,
                HostArena& arena, LinearPart& part) {
  part.layout = packer.pieces[0].codes->layout;
  part.codes = shape;
  part.panel_bytes = shape.panel_bytes;
  part.panels = arena.allocate(static_cast<size_t>(part.num_panels * part.panel_bytes));
  pool.parallel_for(part.num_panels, [&](int64_t panel, int) {
    pack_code_panel(packer.kernels, shape, packer.pieces, panel,
                    static_cast<char*>(part.panels->data()) + panel * part.panel_bytes);
  });
}

// How many of the pieces, from the first on, are one part.
size_t part_of(std::span<const HostMatrix> pieces) {
  const bool on_codes = plan_code_panels(pieces[0]).has_value();
  size_t count = 1;
  for (; count < pieces.size(); ++count) {
    if (plan_code_panels(pieces[count]).has_value() != on_codes) break;
    if (on_codes && !have_equal_codes(pieces[0], pieces[count])) break;
  }
  return count;
}

// Of most of a weight.
WeightLayout main_layout(const CpuLinearWeight& weight) {
  return std::ranges::max_element(weight.parts, {}, &LinearPart::bytes)->layout;
}

}  // namespace

std::unique_ptr<LinearWeight> CpuBackend::make_linear(std::span<const HostMatrix> pieces,
                                                      const float* bias, DType dtype) {
  HostArena arena(0);
  return pack_linear(pool_, isa_, pieces, bias, dtype, arena);
}

const LinearPath& linear_path(const LinearKernels& kernels, WeightLayout layout, DType dtype) {
  const bool bf16 = dtype == DType::kBFloat16;
  switch (layout) {
    case WeightLayout::kPlain:
    case WeightLayout::kCoded12:
      return bf16 ? kernels.bf16 : kernels.f32;
    case WeightLayout::kGroup:
    case WeightLayout::kByte:
    case WeightLayout::kSuper:
      break;
  }
  return bf16 ? kernels.codes_bf16 : kernels.codes_f32;
}

std::unique_ptr<LinearWeight> pack_linear(ThreadPool& pool, Isa isa,
                                          std::span<const HostMatrix> pieces, const float* bias,
                                          DType dtype, HostArena& arena) {
  NANOVLLM_CHECK(!pieces.empty());
  NANOVLLM_CHECK(dtype == DType::kBFloat16 || dtype == DType::kFloat32);
  auto weight = std::make_unique<CpuLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces[0].cols;
  for (const HostMatrix& piece : pieces) {
    NANOVLLM_CHECK(piece.cols == weight->in_features && piece.dtype != DType::kInt32);
    weight->out_features += piece.rows;
  }
  const int64_t k = weight->in_features;
  weight->num_steps = round_up(dtype == DType::kBFloat16 ? divide_up(k, 2) : k, kStepMultiple);
  const LinearKernels& kernels = linear_kernels(isa);
  const bool may_code = dtype == DType::kBFloat16 && kernels.code_panel != nullptr;
  for (int64_t first_column = 0; !pieces.empty();) {
    const auto of_part = pieces.first(part_of(pieces));
    LinearPart& part = weight->parts.emplace_back();
    part.first_column = first_column;
    for (const HostMatrix& piece : of_part) part.num_columns += piece.rows;
    part.num_panels = divide_up(part.num_columns, kPanelColumns);
    if (bias != nullptr) {
      part.bias.assign(static_cast<size_t>(part.num_panels * kPanelColumns), 0.0f);
      std::copy_n(bias + first_column, part.num_columns, part.bias.begin());
    }
    const PanelPacker packer{kernels, of_part, dtype, weight->num_steps};
    if (const auto shape = plan_code_panels(of_part[0])) {
      pack_codes(pool, packer, *shape, arena, part);
    } else if (!may_code || !pack_coded(pool, packer, arena, part)) {
      pack_plain(pool, packer, arena, part);
    }
    weight->bytes += part.bytes();
    const int64_t num_decoded = part.has_codes() ? 0 : num_with_codes(of_part);
    add_layout(weight->parts_by_layout, {part.layout, 1, part.bytes(), num_decoded});
    first_column += part.num_columns;
    pieces = pieces.subspan(of_part.size());
  }
  weight->layout = main_layout(*weight);
  weight->format =
      weight->layout == WeightLayout::kPlain ? to_string(dtype) : to_string(weight->layout);
  return weight;
}

}  // namespace nanovllm
