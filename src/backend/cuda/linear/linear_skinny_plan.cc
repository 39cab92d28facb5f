#include "backend/cuda/linear/linear_skinny_plan.h"

#include <algorithm>

namespace nanovllm::cuda::skinny {
namespace {

constexpr int kMaxRounds = 8;             // of groups of features a block
constexpr int64_t kReservedBytes = 1024;  // of each block's shared memory, by the system

int parts_of(int64_t whole, int64_t part) { return static_cast<int>((whole + part - 1) / part); }

// How to divide a product of these tiles and this cluster. `in_slices`: x may come a few of its
// columns at a time, again for each group of features.
Plan make_plan(const SkinnyProduct& p, int tiles, int cluster, const cudaDeviceProp& device,
               bool in_slices) {
  Plan plan;
  plan.tiles = tiles;
  plan.rows_at_once = p.rows;
  plan.cluster = cluster;
  const bool pairs = p.epilogue == Epilogue::kActAndMul;
  plan.groups = parts_of(pairs ? p.out_features / 2 : p.out_features, tiles * (pairs ? 4 : 8));
  plan.units = parts_of(p.in_features, kBlockUnit * cluster);
  const int rows = row_sets_of(p.rows) * 8;
  plan.sum_floats = rows * tiles * 8 * (kWarps + (cluster > 1));
  const int64_t norm_bytes = p.norm.weight == nullptr ? 0 : (p.in_features + kWarps) * 4;
  const int rounds = parts_of(int64_t{plan.groups} * cluster, device.multiProcessorCount);
  plan.stages = static_cast<int>(std::min<int64_t>(stages_of(tiles), int64_t{rounds} * plan.units));
  const int64_t other_bytes =
      plan.sum_floats * 4 + norm_bytes + int64_t{plan.stages} * tiles * 2 * kThreads * 16;
  const auto all_bytes = static_cast<int64_t>(device.sharedMemPerMultiprocessor);
  const int64_t most_bytes =
      std::min(static_cast<int64_t>(device.sharedMemPerBlockOptin), all_bytes - kReservedBytes);
  plan.x_units = plan.units;
  if (in_slices) {
    const int64_t room = (most_bytes - other_bytes) / (rows * 2) - kPad;
    plan.x_units = static_cast<int>(std::clamp<int64_t>(room / kBlockUnit, 1, plan.units));
  }
  plan.shared_bytes = int64_t{rows} * (plan.x_units * kBlockUnit + kPad) * 2 + other_bytes;
  const int resident = plan.shared_bytes + kReservedBytes <= all_bytes / 2 ? 2 : 1;
  plan.blocks = std::min(plan.groups * cluster, device.multiProcessorCount * resident);
  // Elements that the busiest multiprocessor reads, with a cluster's exchange in the same coin.
  const int64_t x_reads = in_slices ? rounds : 1;
  plan.cost = int64_t{rounds} * tiles * 8 * plan.units * kBlockUnit +
              x_reads * p.rows * plan.units * kBlockUnit + (cluster > 1 ? 6000 : 0);
  const bool fits = plan.shared_bytes <= most_bytes;
  const bool shares_k = device.major >= 9 && p.norm.weight == nullptr && !pairs &&
                        tiles % cluster == 0 && rounds == 1;
  // Norms want whole rows.
  if (!fits || (cluster > 1 && !shares_k) || (pairs && tiles % 2 != 0) ||
      (in_slices && p.norm.weight != nullptr)) {
    plan.tiles = 0;
  }
  return plan;
}

Plan best_plan(const SkinnyProduct& p, const cudaDeviceProp& device, bool in_slices = false) {
  Plan best;
  for (const int tiles : {6, 4, 2, 1}) {
    for (const int cluster : {1, 2, 4}) {
      if (in_slices && cluster > 1) continue;
      const Plan plan = make_plan(p, tiles, cluster, device, in_slices);
      if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
    }
  }
  return best;
}

}  // namespace

Plan plan_of(const SkinnyProduct& p, const cudaDeviceProp& device) {
  if (p.layout != WeightLayout::kPlain || p.in_features % 8 != 0) return {};
  if (!p.fixed_order) {
    if (p.rows > kMaxSkinnyRows) return {};
    const Plan plan = best_plan(p, device);
    // cuBLASLt streams very large weights as well.
    return plan.groups > kMaxRounds * plan.blocks ? Plan{} : plan;
  }
  // One division of K for any number of rows: that of the most rows that fit at once. Where a row
  // is too long for that, nobody else takes the product in a fixed order.
  SkinnyProduct part = p;
  for (part.rows = kFixedOrderRows; part.rows >= 8; part.rows /= 2) {
    const Plan plan = best_plan(part, device);
    if (plan.tiles > 0) return plan;
  }
  part.rows = kFixedOrderRows;
  return best_plan(part, device, /*in_slices=*/true);
}

}  // namespace nanovllm::cuda::skinny
