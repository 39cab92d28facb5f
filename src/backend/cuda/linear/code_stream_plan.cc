#include <algorithm>
#include <utility>

#include "backend/cuda/linear/code_product_shape.h"
#include "backend/cuda/linear/code_stream.h"

namespace nanovllm::cuda {
namespace {

constexpr int kReservedOfBlock = 1024;  // of each block's shared memory, by the system
constexpr int kSumRowBytes = 20 * 4;    // of 16 features, and padding

// What a warp takes for a block of columns. Of several resident blocks one is the faster while
// another has nothing left to do; with few bytes on their way few rows wait for them.
int step_cost(const StreamPlan& plan, int residents, int most_slots) {
  const int step = residents == 3 ? 7 : residents == 2 ? 6 : plan.warps == kMaxStreamWarps ? 8 : 10;
  return plan.slots < most_slots ? step + (plan.row_sets == 1 ? 3 : 1) : step;
}

// With so many blocks a multiprocessor, slots a warp and slices of so many blocks of columns of
// each of `split` shares of K: the best, if it has room and costs less than `least`, in eighths of
// what a warp takes for a block of columns.
void try_division(StreamPlan& best, int& least, StreamPlan plan, const CodeProduct& p,
                  int residents, int most_slots, const DeviceTraits& device) {
  const CodeShape& shape = p.shape;
  plan.slices = parts_in(plan.range_blocks, plan.slice_blocks);
  plan.x_stride = plan.slice_blocks * kBlockColumns * 2 + 16;
  plan.x_bytes = p.rows * plan.x_stride;
  plan.table_offset = kCodeBarrierBytes;
  plan.ring_offset = plan.table_offset + (shape.kind == CodeKind::kTable4 ? kPairTableBytes : 0);
  plan.x_offset = plan.ring_offset + plan.warps * plan.slots * shape.block_bytes;
  plan.sums_offset = plan.x_offset + plan.x_bytes * (plan.slices > 1 ? 2 : 1);
  plan.shared_bytes = plan.sums_offset + 2 * plan.warps * 8 * kSumRowBytes;
  const auto most = static_cast<int64_t>(device.properties.sharedMemPerMultiprocessor) / residents;
  if (plan.shared_bytes + kReservedOfBlock > most) return;
  int clusters = device.num_multiprocessors() * residents / plan.split;
  if (p.tiles != nullptr) clusters = parts_in(clusters, plan.row_tiles);
  for (int k_warps = 1; k_warps <= plan.warps; k_warps *= 2) {
    const int parallel = plan.warps / k_warps;
    const int rounds = parts_in(plan.items, int64_t{clusters} * parallel);
    const int share = parts_in(plan.slice_blocks, k_warps);
    const int meetings = plan.split > 1 ? rounds * plan.row_sets * 4 : 0;
    const int step = step_cost(plan, residents, most_slots);
    const int slices = plan.slices > 1 ? rounds * plan.slices * 3 : 0;
    const int cost = rounds * plan.slices * share * step + slices + meetings;
    if (least > 0 && cost >= least) continue;
    least = cost;
    plan.k_warps = k_warps;
    plan.rounds = rounds;
    plan.share_blocks = share;
    plan.blocks = std::min(clusters, parts_in(plan.items, parallel)) * plan.split;
    best = plan;
  }
}

}  // namespace

StreamPlan plan_code_stream(const CodeProduct& p, const DeviceTraits& device) {
  if (!device.has_programmatic_launch || p.rows > kMaxStreamRows || !has_form(p.shape)) {
    return {};
  }
  StreamPlan plan;
  plan.row_sets = p.rows <= 8 ? 1 : p.rows <= 16 ? 2 : 4;
  plan.items = parts_in(p.features, kTileRows);
  if (p.tiles != nullptr) plan.row_tiles = std::max(p.max_tiles, 1);
  plan.tail_bytes =
      static_cast<int>(p.shape.tile_bytes - int64_t{p.shape.num_blocks - 1} * p.shape.block_bytes);
  const int most_slots = std::clamp(
      parts_in(kCodeBytesAhead, kMaxStreamWarps * p.shape.block_bytes) + 1, 2, kMaxStreamSlots);
  StreamPlan best;
  int least = 0;
  // Blocks of a multiprocessor, of which one may belong to the next kernel, or one that has room
  // for more columns. Meetings of blocks that share K pay with many rows only.
  constexpr std::pair<int, int> kResidentsAndWarps[] = {{3, 8}, {2, 8}, {1, 16}, {1, 8}};
  const bool may_split = plan.row_sets > 1 && p.tiles == nullptr;
  for (const auto& [residents, warps] : kResidentsAndWarps) {
    if (residents == 3 && !is_small_stream(p.shape.kind, plan.row_sets, form_steps(p.shape)))
      continue;
    plan.warps = warps;
    for (plan.split = 1; plan.split <= (may_split ? 2 : 1); ++plan.split) {
      plan.range_blocks = parts_in(p.shape.num_blocks, plan.split);
      for (plan.slots = most_slots; plan.slots >= 2; --plan.slots) {
        plan.slice_blocks = plan.range_blocks;
        try_division(best, least, plan, p, residents, most_slots, device);
        for (plan.slice_blocks = 16; plan.slice_blocks >= 1; plan.slice_blocks /= 2) {
          if (plan.slice_blocks >= plan.range_blocks) continue;
          try_division(best, least, plan, p, residents, most_slots, device);
        }
      }
    }
  }
  return best;
}

}  // namespace nanovllm::cuda
