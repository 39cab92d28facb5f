#include <algorithm>
#include <bit>

#include "backend/cuda/linear/code_wgmma.h"

namespace nanovllm::cuda {
namespace {

constexpr int kRowsAlignment = 1024;
constexpr int kMostBlocksOfCluster = 4;  // clusters of more leave multiprocessors without one
constexpr int kFewestSlots = 2;

// Divides shared memory: rows of `fewest` blocks of columns or more, if there are as many, for each
// warpgroup that shares K, and codes that come while others are used up.
bool place(CodeWgmmaPlan& plan, int fewest, const CodeShape& shape, const DeviceTraits& device) {
  const int warps = plan.groups * kGroupTiles;
  const auto most = static_cast<int>(device.block_bytes()) - kRowsAlignment;
  plan.row_bytes = plan.rows * kBlockColumns * 2;
  const int table_bytes = shape.kind == CodeKind::kTable4 ? kPairTableBytes : 0;
  const int sum_bytes = plan.k_groups * plan.rows * (plan.features() + kSumPadding) * 4;
  const int most_slots =
      std::clamp(parts_in(kCodeBytesAhead, int64_t{warps} * shape.block_bytes) + 1, kFewestSlots,
                 kMaxGroupSlots);
  const auto all = static_cast<int>(std::bit_ceil(static_cast<unsigned>(plan.range_blocks)));
  const int least = std::min(fewest * plan.k_groups, all);
  plan.rows_offset = kCodeBarrierBytes;
  for (plan.slots = most_slots; plan.slots >= kFewestSlots; --plan.slots) {
    const int ring_bytes = warps * plan.slots * shape.block_bytes;
    for (plan.row_stages = std::min(kMaxRowStages, all); plan.row_stages >= least;
         plan.row_stages /= 2) {
      plan.table_offset = plan.rows_offset + plan.row_stages * plan.row_bytes;
      plan.ring_offset = plan.table_offset + table_bytes;
      const int end = plan.ring_offset + ring_bytes;
      if (end > most || plan.rows_offset + sum_bytes > end) continue;
      plan.row_shift = std::countr_zero(static_cast<unsigned>(plan.row_stages));
      plan.shared_bytes = end + kRowsAlignment;
      return true;
    }
  }
  return false;
}

// Cycles, about: a warpgroup takes longer for a block of columns the more there are, but all of
// them less than one behind the other; codes and rows come at the rate of L2. Blocks of a cluster
// exchange their sums in the end.
int64_t cost_of(const CodeWgmmaPlan& plan, const CodeShape& shape, const DeviceTraits& device) {
  constexpr int kGroupCycles[kMaxGroups + 1] = {0, 1500, 1800, 2070, 2400};
  constexpr int kBytesOfCycle = 22, kStartCycles = 2500, kMeetingCycles = 1500;
  const int clusters = device.num_multiprocessors() / plan.split;
  const int64_t waves = parts_in(plan.panels, clusters);
  const int tiles = plan.groups / plan.k_groups * kGroupTiles;
  const int64_t computing =
      int64_t{parts_in(plan.range_blocks, plan.k_groups)} * kGroupCycles[plan.groups];
  const int64_t reading =
      int64_t{plan.range_blocks} * (plan.row_bytes + tiles * shape.block_bytes) / kBytesOfCycle;
  const int around = kStartCycles + (plan.split > 1 ? kMeetingCycles : 0);
  return waves * (std::max(computing, reading) + around);
}

}  // namespace

CodeWgmmaPlan plan_code_wgmma(const CodeProduct& p, const DeviceTraits& device) {
  if (!device.has_wgmma || p.tiles != nullptr || p.is_gated || p.rows > kMaxCodeWgmmaRows ||
      !has_form(p.shape) || scaling_of(p.shape) == Scaling::kAdded) {
    return {};
  }
  CodeWgmmaPlan best;
  int64_t least = 0;
  CodeWgmmaPlan plan;
  plan.rows = std::max(8, static_cast<int>(std::bit_ceil(static_cast<unsigned>(p.rows))));
  plan.tail_bytes =
      static_cast<int>(p.shape.tile_bytes - int64_t{p.shape.num_blocks - 1} * p.shape.block_bytes);
  for (plan.groups = 1; plan.groups <= (plan.rows > 32 ? 3 : kMaxGroups); ++plan.groups) {
    for (plan.k_groups = 1; plan.k_groups <= plan.groups; plan.k_groups *= 2) {
      if (plan.groups % plan.k_groups != 0) continue;
      plan.panels = parts_in(p.features, plan.features());
      for (plan.split = 1; plan.split <= kMostBlocksOfCluster; plan.split *= 2) {
        plan.range_blocks = parts_in(p.shape.num_blocks, plan.split);
        if (!place(plan, 4, p.shape, device) && !place(plan, 2, p.shape, device)) continue;
        const int64_t cost = cost_of(plan, p.shape, device);
        if (least > 0 && cost >= least) continue;
        least = cost;
        best = plan;
      }
    }
  }
  return best;
}

}  // namespace nanovllm::cuda
