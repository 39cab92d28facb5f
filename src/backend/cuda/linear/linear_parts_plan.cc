#include <algorithm>

#include "backend/cuda/linear/linear_parts.h"

namespace nanovllm::cuda {
namespace {

constexpr int kMaxPartsShared = 225 << 10;  // bytes, less what is static
constexpr int kPartsAlignment = 1024;       // of the swizzle
constexpr int kMinPartsStages = 3;
constexpr int kLineBytes = 128;  // bytes, a chunk of K of one row

int pieces_of(int whole, int piece) { return (whole + piece - 1) / piece; }

// Blocks that run at once, one a multiprocessor: the 8 or so groups of multiprocessors that a
// cluster must lie in are not multiples of large ones.
int resident_blocks(int multiprocessors, int cluster) {
  constexpr int kSpareOfGroups = 8;
  return multiprocessors - kSpareOfGroups * (cluster - 2);
}

ManyPartsPlan divide_rows(const PartsProduct& p, int rows, int multiprocessors) {
  ManyPartsPlan plan;
  plan.rows = rows;
  plan.feature_tiles = pieces_of(p.out_features, kPartsTile);
  plan.row_tiles = pieces_of(p.rows, plan.rows);
  const int tiles = plan.feature_tiles * plan.row_tiles;
  plan.cluster = 1;
  for (const int cluster : {2, 4, 8}) {
    if (tiles * cluster <= resident_blocks(multiprocessors, cluster)) plan.cluster = cluster;
  }
  const int sets = (plan.cluster - 1) * (kNumParts / plan.cluster) + 1;
  const int received = sets * (plan.rows / plan.cluster) * kPartsStagedStride * 4;
  const int stage = (kPartsTile + plan.rows) * kLineBytes;
  const int room = (kMaxPartsShared - kPartsAlignment - received) / stage;
  // Sums of many rows and parts leave no room for a ring.
  if (room < kMinPartsStages) return divide_rows(p, rows / 2, multiprocessors);
  const int part_bytes = steps_of_part(p.in_features, 0).count * kPartStep * 2;
  const int chunks = kNumParts / plan.cluster * pieces_of(part_bytes, kLineBytes);
  plan.stages = std::min({room, kMaxPartsStages, chunks});
  plan.received_offset = plan.stages * stage;
  plan.shared_bytes = plan.received_offset + received + kPartsAlignment;
  plan.blocks = plan.cluster > 1 ? tiles * plan.cluster : std::min(tiles, multiprocessors);
  return plan;
}

}  // namespace

bool takes_parts(const PartsProduct& p) {
  return p.layout == WeightLayout::kPlain && p.in_features % 8 == 0 &&
         p.in_features >= kNumParts * kPartStep && p.epilogue != Epilogue::kActAndMul;
}

// Smaller products were not measured.
bool do_few_parts_pay(const PartsProduct& p) {
  constexpr int kLeastFeatures = 1024, kLeastK = 1024;
  return p.rows <= kMaxFewPartsRows && p.out_features >= kLeastFeatures && p.in_features >= kLeastK;
}

FewPartsPlan plan_few_parts(const PartsProduct& p, int multiprocessors) {
  if (!takes_parts(p) || p.rows > kMaxFewPartsRows) return {};
  FewPartsPlan best;
  int least = 0;
  for (const int tiles : {1, 2, 3}) {
    const int groups = pieces_of(p.out_features, tiles * 8);
    // Features of the busiest multiprocessor; of equals the widest, which fetches x least often.
    const int cost = pieces_of(groups, multiprocessors) * tiles;
    if (best.tiles > 0 && cost > least) continue;
    least = cost;
    best.tiles = tiles;
    best.groups = groups;
    best.blocks = std::min(groups, multiprocessors * 2);
  }
  return best;
}

ManyPartsPlan plan_many_parts(const PartsProduct& p, int multiprocessors) {
  if (!takes_parts(p)) return {};
  const int rows = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : p.rows <= 64 ? 64 : 128;
  return divide_rows(p, rows, multiprocessors);
}

}  // namespace nanovllm::cuda
