#include <algorithm>

#include "backend/cuda/linear/code_product_shape.h"
#include "backend/cuda/linear/code_stream.h"

namespace nanovllm::cuda {
namespace {

constexpr int kBarrierBytes = 1024;
constexpr int kReservedOfBlock = 1024;  // of each block's shared memory, by the system
constexpr int kBytesAhead = 64 << 10;   // of codes of a multiprocessor, on their way
constexpr int kSumRowBytes = 20 * 4;    // of 16 features, and padding

int parts_rounded_up(int64_t whole, int64_t part) {
  return static_cast<int>((whole + part - 1) / part);
}

// Whether there is a kernel for the codes.
bool takes(const CodeShape& shape) {
  if (shape.in_features % kUnitColumns != 0) return false;
  if (shape.is_super && shape.super_columns != kBlockColumns) return false;
  const int steps = shape.is_row_scaled ? kUnitSteps : scaled_steps(shape);
  return has_stream_kernel(shape.kind, scales_in_stream(shape), scaling_of(shape), steps,
                           shape.is_super);
}

// With so many warps in a block, so many blocks a multiprocessor and slices of
// so many blocks of columns; false if that has no room.
bool divide(StreamPlan& plan, const CodeProduct& p, int residents, int slice_blocks,
            const DeviceTraits& device) {
  const CodeShape& shape = p.shape;
  plan.warps = kMaxStreamWarps / residents;
  plan.slice_blocks = slice_blocks;
  plan.slices = parts_rounded_up(shape.num_blocks, slice_blocks);
  plan.x_stride = slice_blocks * kBlockColumns * 2 + 16;
  plan.x_bytes = p.rows * plan.x_stride;
  plan.table_offset = kBarrierBytes;
  plan.ring_offset = plan.table_offset + (shape.kind == CodeKind::kTable4 ? kPairTableBytes : 0);
  plan.slots = std::clamp(parts_rounded_up(kBytesAhead, kMaxStreamWarps * shape.block_bytes) + 1, 2,
                          kMaxStreamSlots);
  plan.x_offset = plan.ring_offset + plan.warps * plan.slots * shape.block_bytes;
  plan.sums_offset = plan.x_offset + plan.x_bytes * (plan.slices > 1 ? 2 : 1);
  plan.shared_bytes = plan.sums_offset + 2 * plan.warps * plan.row_sets * 8 * kSumRowBytes;
  const auto most = static_cast<int64_t>(device.properties.sharedMemPerMultiprocessor) / residents;
  if (plan.shared_bytes + kReservedOfBlock > most) return false;
  const int multiprocessors = device.num_multiprocessors();
  int least = 0;
  for (int k_warps = 1; k_warps <= plan.warps; k_warps *= 2) {
    const int parallel = plan.warps / k_warps;
    const int rounds =
        parts_rounded_up(plan.items, int64_t{multiprocessors} * residents * parallel);
    const int share = parts_rounded_up(slice_blocks, k_warps);
    const int cost = rounds * plan.slices * share;
    if (least > 0 && cost >= least) continue;
    least = cost;
    plan.k_warps = k_warps;
    plan.rounds = rounds;
    plan.share_blocks = share;
    plan.blocks = std::min(multiprocessors * residents, parts_rounded_up(plan.items, parallel));
  }
  return true;
}

}  // namespace

StreamPlan plan_code_stream(const CodeProduct& p, const DeviceTraits& device) {
  StreamPlan plan;
  if (!device.has_programmatic_launch || p.tiles != nullptr || p.rows > kMaxStreamRows ||
      !takes(p.shape)) {
    return {};
  }
  plan.row_sets = p.rows <= 8 ? 1 : 2;
  plan.items = parts_rounded_up(p.features, kTileRows);
  plan.tail_bytes =
      static_cast<int>(p.shape.tile_bytes - int64_t{p.shape.num_blocks - 1} * p.shape.block_bytes);
  // All of K where it has room, best in two blocks a multiprocessor, one of
  // which may belong to the next kernel; else slices of which two have.
  for (const int residents : {2, 1}) {
    if (divide(plan, p, residents, p.shape.num_blocks, device)) return plan;
  }
  for (int blocks = 16; blocks >= 1; blocks /= 2) {
    if (blocks < p.shape.num_blocks && divide(plan, p, 1, blocks, device)) return plan;
  }
  return {};
}

}  // namespace nanovllm::cuda
