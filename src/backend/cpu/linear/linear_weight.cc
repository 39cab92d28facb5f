// Packing of weights into panels, plain or coded.
#include "backend/cpu/linear/linear_weight.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_pack.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Row n of the stacked pieces, or a null row behind the last.
SourceRow row_of(std::span<const HostMatrix> pieces, int64_t n) {
  for (const HostMatrix& piece : pieces) {
    if (n < piece.rows) {
      if (piece.decoder != nullptr) return {.coded = &piece, .row = n};
      return {piece.row_data(n), piece.dtype};
    }
    n -= piece.rows;
  }
  return {};
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
bool pack_coded(ThreadPool& pool, const PanelPacker& packer, HostArena& arena,
                CpuLinearWeight& weight) {
  const int64_t panel_bytes = weight.coded_panel_bytes(), plain_bytes = weight.plain_panel_bytes();
  const int64_t panel_weights = weight.num_steps * kPanelColumns * 2;
  const int64_t max_patches = weight.num_panels * panel_weights / kWeightsPerPatch;
  auto panels = arena.allocate(static_cast<size_t>(weight.num_panels * panel_bytes));
  const auto patches =
      allocate_host(static_cast<size_t>(max_patches + weight.num_panels) * sizeof(WeightPatch));
  // A plain panel and the most patches it can have, for every thread; what none touches is free.
  const int64_t staging_bytes =
      round_up(plain_bytes + (panel_weights + 1) * int64_t{sizeof(WeightPatch)}, 64);
  const auto staging = allocate_host(static_cast<size_t>(pool.num_threads() * staging_bytes));
  auto* const all_patches = static_cast<WeightPatch*>(patches->data());
  weight.panel_patches.resize(static_cast<size_t>(weight.num_panels));
  std::atomic<int64_t> num_patches = 0;  // with those that end a panel's list
  const int64_t room = max_patches + weight.num_panels;
  pool.parallel_for(weight.num_panels, [&](int64_t panel, int thread) {
    if (num_patches > room) return;
    char* plain = static_cast<char*>(staging->data()) + thread * staging_bytes;
    auto* list = reinterpret_cast<WeightPatch*>(plain + plain_bytes);
    packer.pack(panel, plain, false);
    const int64_t count =
        packer.kernels.code_panel(plain, weight.num_steps,
                                  static_cast<char*>(panels->data()) + panel * panel_bytes, list) +
        1;
    const int64_t first = num_patches.fetch_add(count);
    if (first + count > room) return;
    std::copy_n(list, count, all_patches + first);
    weight.panel_patches[static_cast<size_t>(panel)] = all_patches + first;
  });
  if (num_patches > room) {
    arena.undo(std::move(panels));
    return false;
  }
  weight.panels = std::move(panels);
  const int64_t patch_bytes = num_patches * int64_t{sizeof(WeightPatch)};
  weight.patches = arena.allocate(static_cast<size_t>(patch_bytes));
  auto* const kept = static_cast<WeightPatch*>(weight.patches->data());
  std::copy_n(all_patches, num_patches.load(), kept);
  for (const WeightPatch*& first : weight.panel_patches) first = kept + (first - all_patches);
  weight.bytes = weight.num_panels * panel_bytes + patch_bytes;
  return true;
}

void pack_plain(ThreadPool& pool, const PanelPacker& packer, HostArena& arena,
                CpuLinearWeight& weight) {
  const int64_t bytes = weight.plain_panel_bytes();
  weight.bytes = weight.num_panels * bytes;
  weight.panels = arena.allocate(static_cast<size_t>(weight.bytes));
  pool.parallel_for(weight.num_panels, [&](int64_t panel, int) {
    packer.pack(panel, static_cast<char*>(weight.panels->data()) + panel * bytes, true);
  });
}

}  // namespace

std::unique_ptr<LinearWeight> CpuBackend::make_linear(std::span<const HostMatrix> pieces,
                                                      const float* bias, DType dtype) {
  HostArena arena(0);
  return pack_linear(pool_, isa_, pieces, bias, dtype, arena);
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
  const int64_t n = weight->out_features, k = weight->in_features;
  weight->num_panels = divide_up(n, kPanelColumns);
  weight->num_steps = round_up(dtype == DType::kBFloat16 ? divide_up(k, 2) : k, kStepMultiple);
  if (bias != nullptr) {
    weight->bias.assign(static_cast<size_t>(weight->num_panels * kPanelColumns), 0.0f);
    std::copy(bias, bias + n, weight->bias.begin());
  }
  const LinearKernels& kernels = linear_kernels(isa);
  const PanelPacker packer{kernels, pieces, dtype, weight->num_steps};
  const bool may_code = dtype == DType::kBFloat16 && kernels.code_panel != nullptr;
  if (!may_code || !pack_coded(pool, packer, arena, *weight)) {
    pack_plain(pool, packer, arena, *weight);
  }
  weight->format = weight->coded() ? "12-bit codes" : to_string(dtype);
  return weight;
}

}  // namespace nanovllm
