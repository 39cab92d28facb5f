#include <algorithm>

#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_product_shape.h"

namespace nanovllm::cuda {
namespace {

constexpr int64_t kSystemBytes = 1024;  // of each block's shared memory, by the system
constexpr int kMinCodeStages = 2;
constexpr int kMaxSplit = 8;

// So many blocks share K that the busiest multiprocessor has the fewest steps to read, and to
// compute one behind the other where it has two blocks at once; whatever the rows.
int split_of(const CodePlan& plan, const CodeShape& shape, const DeviceTraits& device) {
  const bool has_clusters = device.properties.major >= 9;
  int best = 1, best_steps = 0;
  for (int split = 1; split <= (has_clusters ? kMaxSplit : 1); split *= 2) {
    const int64_t blocks = int64_t{plan.panels} * split;
    const int rounds = parts_in(blocks, device.num_multiprocessors()) +
                       parts_in(blocks, 2 * device.num_multiprocessors());
    const int steps = rounds * parts_in(shape.num_blocks, split);
    if (split > shape.num_blocks || (split > 1 && steps >= best_steps)) continue;
    best = split;
    best_steps = steps;
  }
  return best;
}

// Divides shared memory: two blocks a multiprocessor where each has enough stages.
void place(CodePlan& plan, const CodeShape& shape, const DeviceTraits& device) {
  const int rows = plan.row_sets * 8;
  plan.x_offset = kPanelTiles * shape.block_bytes;
  plan.stage_bytes = plan.x_offset + rows * kXStride;
  plan.scaled_steps = scaled_steps(shape);
  plan.prepared_offset = shape.kind == CodeKind::kTable4 ? kPairTableBytes : 0;
  plan.ring_offset = plan.prepared_offset;
  if (!shape.is_row_scaled) plan.ring_offset += prepared_bytes(shape);
  const auto most = static_cast<int64_t>(device.block_bytes());
  const auto all = static_cast<int64_t>(device.properties.sharedMemPerMultiprocessor);
  const int64_t half = std::min(most, all / 2 - kSystemBytes);
  const auto stages_in = [&](int64_t bytes) {
    return static_cast<int>(
        std::min<int64_t>((bytes - plan.ring_offset) / plan.stage_bytes, kMaxCodeStages));
  };
  plan.stages = stages_in(half);
  if (plan.stages <= kMinCodeStages) plan.stages = stages_in(most);
  plan.stages = std::min(plan.stages, std::max(plan.steps + 1, kMinCodeStages));
  const int64_t ring = int64_t{plan.stages} * plan.stage_bytes;
  const int64_t sums = int64_t{kSharesOfK} * rows * kSumStride * 4;
  plan.shared_bytes = plan.ring_offset + std::max(ring, sums);
  if (plan.stages < kMinCodeStages || plan.shared_bytes > most) plan.row_sets = 0;
}

}  // namespace

CodePlan plan_code_product(const CodeProduct& p, const DeviceTraits& device) {
  CodePlan plan;
  plan.panels = parts_in(parts_in(p.features, kTileRows), kPanelTiles);
  plan.split = p.tiles == nullptr ? split_of(plan, p.shape, device) : 1;
  plan.steps = parts_in(p.shape.num_blocks, plan.split);
  int row_sets = 1;
  while (row_sets < kMaxRowSets && row_sets * 8 < p.rows) row_sets *= 2;
  // Rows that find no room at once are several tiles, but for those of experts.
  for (; row_sets > 0; row_sets /= 2) {
    plan.row_sets = row_sets;
    place(plan, p.shape, device);
    if (plan.row_sets > 0) break;
    if (p.tiles != nullptr) return {};
  }
  if (plan.row_sets == 0) return {};
  plan.row_tiles = p.tiles != nullptr ? p.max_tiles : parts_in(p.rows, plan.row_sets * 8);
  return plan;
}

}  // namespace nanovllm::cuda
