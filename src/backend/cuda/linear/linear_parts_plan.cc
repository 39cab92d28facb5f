#include <algorithm>
#include <cstdint>

#include "backend/cuda/linear/linear_parts.h"

namespace nanovllm::cuda {
namespace {

constexpr int64_t kOnePartBytes = int64_t{16} << 20;
constexpr int kMaxPartsShared = 225 << 10;  // bytes, less what is static
constexpr int kPartsAlignment = 1024;       // of the swizzle
constexpr int kMinPartsStages = 3;
constexpr int kLineBytes = 128;  // bytes, a chunk of K of one row

int pieces_of(int whole, int piece) { return (whole + piece - 1) / piece; }

bool takes_parts(const PartsProduct& p) {
  return p.layout == WeightLayout::kPlain && p.in_features % 8 == 0 &&
         p.epilogue != Epilogue::kActAndMul;
}

ManyPartsPlan divide_rows(const PartsProduct& p, int rows, int multiprocessors) {
  ManyPartsPlan plan;
  plan.parts = parts_of_weight(p.out_features, p.in_features);
  plan.rows = rows;
  plan.feature_tiles = pieces_of(p.out_features, kPartsTile);
  plan.row_tiles = pieces_of(p.rows, plan.rows);
  const int tiles = plan.feature_tiles * plan.row_tiles;
  plan.cluster = 1;
  while (plan.cluster < plan.parts && tiles * plan.cluster * 2 <= multiprocessors) {
    plan.cluster *= 2;
  }
  const int sets = (plan.cluster - 1) * (plan.parts / plan.cluster) + 1;
  const int received = sets * (plan.rows / plan.cluster) * kPartsStagedStride * 4;
  const int stage = (kPartsTile + plan.rows) * kLineBytes;
  plan.stages = std::min((kMaxPartsShared - kPartsAlignment - received) / stage, kMaxPartsStages);
  plan.received_offset = plan.stages * stage;
  plan.shared_bytes = plan.received_offset + received + kPartsAlignment;
  plan.blocks = plan.cluster > 1 ? tiles * plan.cluster : std::min(tiles, multiprocessors);
  return plan;
}

}  // namespace

int parts_of_weight(int out_features, int in_features) {
  const bool has_steps = in_features >= kMaxParts * kPartStep;  // one a part, at least
  return has_steps && int64_t{out_features} * in_features * 2 <= kOnePartBytes ? kMaxParts : 1;
}

FewPartsPlan plan_few_parts(const PartsProduct& p, int multiprocessors) {
  if (!takes_parts(p) || p.rows > kMaxFewPartsRows) return {};
  FewPartsPlan best;
  int least = 0;
  best.parts = parts_of_weight(p.out_features, p.in_features);
  const int block_groups = best.parts == 1 ? kFewPartsWarps : 1;
  for (const int tiles : {1, 2, 3, 4}) {
    if (best.parts > 1 && tiles > 3) continue;
    const int groups = pieces_of(p.out_features, tiles * 8);
    const int blocks = pieces_of(groups, block_groups);
    // Features of the busiest multiprocessor; of equals the widest, which fetches x least often.
    const int cost = pieces_of(blocks, multiprocessors) * tiles;
    if (best.tiles > 0 && cost > least) continue;
    least = cost;
    best.tiles = tiles;
    best.groups = groups;
    best.blocks = std::min(blocks, multiprocessors * 2);
  }
  return best;
}

ManyPartsPlan plan_many_parts(const PartsProduct& p, int multiprocessors) {
  if (!takes_parts(p)) return {};
  const int rows = p.rows <= 16 ? 16 : p.rows <= 32 ? 32 : p.rows <= 64 ? 64 : 128;
  const ManyPartsPlan plan = divide_rows(p, rows, multiprocessors);
  // Sums of many rows and parts leave no room for a ring.
  return plan.stages >= kMinPartsStages ? plan : divide_rows(p, rows / 2, multiprocessors);
}

}  // namespace nanovllm::cuda
