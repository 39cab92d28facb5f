#include "backend/cuda/linear/linear_wgmma_plan.h"

#include <algorithm>

namespace nanovllm::cuda {
namespace {

constexpr int kMaxShared = 225 << 10;  // bytes, less what is static
constexpr int kAlignment = 1024;       // of the swizzle
// Enough of x in flight to hide the way to L2.
constexpr int kXBytes = 32 << 10;
constexpr int kMinStages = 4;
// Copies grow up to here: each takes a thread a while, but nobody can begin with a part of one.
constexpr int kCopyBytes = 16 << 10;

int tiles_of(const WgmmaProduct& p, int features) {
  return (p.out_features + features - 1) / features;
}

// Enough for a product: see plan_wgmma().
bool are_enough(int blocks, int multiprocessors) { return blocks * 3 >= multiprocessors; }

// So many blocks share K that there are at most `most` of them, or just enough.
int k_blocks_of(const WgmmaProduct& p, int tiles, int most, int multiprocessors) {
  int blocks = 1;
  while (blocks < kMaxKBlocks && p.in_features % (kChunk * blocks * 2) == 0 &&
         (tiles * blocks * 2 <= most || !are_enough(tiles * blocks, multiprocessors))) {
    blocks *= 2;
  }
  return blocks;
}

// Divides features and K among the blocks, as measured to be best.
void divide(WgmmaPlan& plan, const WgmmaProduct& p, int multiprocessors) {
  const bool pairs = p.epilogue == Epilogue::kActAndMul;
  plan.features = kTileFeatures;
  if (pairs && plan.rows <= 16) {
    // Three quarters of the features where that gives more multiprocessors a share of the weight.
    constexpr int kFewer = 48;
    const int tiles = tiles_of(p, kFewer);
    if (tiles <= multiprocessors && tiles * 2 > multiprocessors) plan.features = kFewer;
  }
  plan.tiles = tiles_of(p, plan.features);
  // To exchange sums takes as long as to fetch a third of the weights on fewer multiprocessors;
  // with half the products to do, two blocks share one well while x is small. With many rows there
  // is mostly no room for a second one: half as many blocks then, so that the next product's have
  // multiprocessors to start on.
  int most = multiprocessors;
  if (!pairs && plan.rows > kTileFeatures) {
    most = multiprocessors / 2;
  } else if (p.epilogue == Epilogue::kStore) {
    most = multiprocessors * 2 / 3;
  }
  if (pairs && plan.rows == 32) most = multiprocessors * 2;
  plan.k_blocks = k_blocks_of(p, plan.tiles, most, multiprocessors);
}

// Divides shared memory: the weight, and enough of x.
void place(WgmmaPlan& plan, int chunks) {
  plan.units = chunks / plan.unit;
  const int staged = plan.rows * kStagedStride * 4;
  const int others = plan.rows * 4 + (plan.k_blocks > 1 ? staged : 0);
  const int chunk_bytes = plan.features * kChunk * 2;
  plan.w_bytes = chunk_bytes * plan.unit;
  plan.w_copies = plan.units;
  for (plan.w_shift = 0; plan.w_copies % 2 == 0 && plan.w_bytes * 2 <= kCopyBytes; ++plan.w_shift) {
    plan.w_bytes *= 2;
    plan.w_copies /= 2;
  }
  plan.x_bytes = plan.rows * kChunk * 2 * plan.unit;
  plan.x_stages = std::min(std::max(kXBytes / plan.x_bytes, kMinStages), plan.units);
  plan.x_offset = chunk_bytes * chunks;
  // A block that leaves no room for another on its multiprocessor takes it all.
  const int spare = kMaxShared - kAlignment - others - plan.x_offset - plan.x_stages * plan.x_bytes;
  if (spare * 2 < kMaxShared) {
    plan.x_stages = std::min(plan.x_stages + std::max(spare, 0) / plan.x_bytes, plan.units);
  }
  // A stage that is used again belongs to one of the groups. The other, ahead of it, could take the
  // end of a phase for that of the next but one: barriers tell only odd phases from even ones.
  if (plan.x_stages < plan.units) plan.x_stages -= plan.x_stages % kGroups;
  // The tensor cores read a whole tile where there are fewer features.
  const int operands = std::max(plan.x_offset + plan.x_stages * plan.x_bytes,
                                plan.x_offset + (kTileFeatures - plan.features) * kChunk * 2);
  plan.received_offset = std::max(operands, kGroups * staged);
  plan.scale_offset = plan.received_offset + (plan.k_blocks > 1 ? staged : 0);
  plan.shared_bytes = static_cast<size_t>(plan.scale_offset + plan.rows * 4 + kAlignment);
}

}  // namespace

int square_parts(int out_features) { return (out_features + kTileFeatures - 1) / kTileFeatures; }

size_t split_norm_bytes() {
  return size_t{kMaxWgmmaRows} *
         (size_t{kMaxSplitNorm} * 2 + size_t{kMaxSplitNorm} / kTileFeatures * 4);
}

WgmmaPlan plan_wgmma(const WgmmaProduct& p, int multiprocessors) {
  if (p.layout != WeightLayout::kPlain) return {};
  if (p.rows > kMaxWgmmaRows || p.in_features % kChunk != 0 || p.out_features % 16 != 0) return {};
  if (p.next_norm.weighted != nullptr && p.out_features > kMaxSplitNorm) return {};
  WgmmaPlan plan;
  const int step = p.rows <= 64 ? 16 : 32;  // of the rows there are kernels for
  plan.rows = (p.rows + step - 1) / step * step;
  divide(plan, p, multiprocessors);
  const int chunks = p.in_features / kChunk / plan.k_blocks;
  plan.unit = 1;
  while (chunks % (plan.unit * 2) == 0 && plan.unit * 4 <= chunks &&
         plan.rows * kChunk * 2 * plan.unit * 2 <= kCopyBytes) {
    plan.unit *= 2;
  }
  place(plan, chunks);
  // One block a multiprocessor, not all clusters of a full device find room at once.
  while (plan.k_blocks > 1 && plan.unit > 1 && plan.shared_bytes * 2 > kMaxShared) {
    plan.unit /= 2;
    place(plan, chunks);
  }
  // Measured to pay where all weights fit in shared memory at once and most multiprocessors have
  // some: larger products are long enough for cuBLASLt.
  const int blocks = plan.tiles * plan.k_blocks;
  const int resident = plan.shared_bytes * 2 <= kMaxShared ? 2 : 1;
  const bool pays = std::max(plan.w_copies, plan.x_stages) <= kMaxCopies &&
                    plan.shared_bytes <= kMaxShared && blocks <= multiprocessors * resident &&
                    are_enough(blocks, multiprocessors);
  return pays ? plan : WgmmaPlan{};
}

}  // namespace nanovllm::cuda
