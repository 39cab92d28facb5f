#include "backend/cuda/experts/expert_plan.h"

#include "backend/cuda/experts/experts.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

// Of so many rows an expert has on average, tiles are large.
constexpr int kManyRows = 24;
// Of more rows on average many experts have more than one small tile of codes.
constexpr int kFewRowsInCodes = 5;
// The logits of more are a product for tensor cores.
constexpr int kMaxRouterRows = 8;

}  // namespace

const char* to_string(ExpertPath path) {
  switch (path) {
    case ExpertPath::kTwoKernels:
      return "two kernels for few rows";
    case ExpertPath::kPlainTiles:
      return "tiles for float32 lanes";
    case ExpertPath::kSmallTiles:
      return "small tiles for wgmma";
    case ExpertPath::kLargeTiles:
      return "large tiles for wgmma";
    case ExpertPath::kFewCodes:
      return "small tiles with codes";
    case ExpertPath::kCodes:
      return "tiles with codes";
  }
  return "";
}

int tile_rows_of(ExpertPath path) {
  switch (path) {
    case ExpertPath::kLargeTiles:
      return kLargeTileRows;
    case ExpertPath::kSmallTiles:
      return kSmallTileRows;
    case ExpertPath::kPlainTiles:
    case ExpertPath::kTwoKernels:
      return kPlainTileRows;
    case ExpertPath::kFewCodes:
      return kFewCodeRows;
    case ExpertPath::kCodes:
      return kCodeTileRows;
  }
  NANOVLLM_CHECK(!"a path of experts");
}

ExpertPath plan_experts(const ExpertShape& shape, int rows, const DeviceTraits& device,
                        bool deterministic) {
  const int pairs = rows * shape.num_active;
  if (shape.layout != WeightLayout::kPlain) {
    return pairs > shape.num_experts * kFewRowsInCodes ? ExpertPath::kCodes : ExpertPath::kFewCodes;
  }
  const bool is_aligned = shape.hidden % 8 == 0 && shape.width % 8 == 0;
  if (!deterministic && rows <= kMaxFewRows && pairs <= kMaxFewPairs && is_aligned) {
    return ExpertPath::kTwoKernels;
  }
  const bool has_wgmma = device.has_wgmma && shape.dtype == DType::kBFloat16 &&
                         shape.activation != Activation::kGelu && is_aligned;
  if (!has_wgmma) return ExpertPath::kPlainTiles;
  return pairs >= shape.num_experts * kManyRows ? ExpertPath::kLargeTiles : ExpertPath::kSmallTiles;
}

bool is_router_a_product(int rows, bool deterministic) {
  return rows > kMaxRouterRows && !deterministic;
}

}  // namespace nanovllm::cuda
