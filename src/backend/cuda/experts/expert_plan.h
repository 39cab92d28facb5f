// Which kernels compute a mixture of experts: a pure function of shapes and of what a device has.
#pragma once

#include "backend/cuda/device/device_traits.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

enum class ExpertPath {
  kTwoKernels,  // expert_few.cu
  kPlainTiles,  // expert_product.cu
  kSmallTiles,  // expert_product_wgmma.cu
  kLargeTiles,  // likewise
  kFewCodes,    // linear/code_product.cuh
  kCodes,       // likewise
};
const char* to_string(ExpertPath path);
// The rows of a tile of the experts' products. Two kernels have no tiles, and memory for plain
// ones.
int tile_rows_of(ExpertPath path);

struct ExpertShape {
  DType dtype = DType::kBFloat16;
  Activation activation = Activation::kSilu;
  int hidden = 0, width = 0;
  int num_experts = 0, num_active = 0;  // of all ranks
  WeightLayout layout = WeightLayout::kPlain;
};
// Of so many rows. `deterministic`: a row's sums have one order, however many there are.
ExpertPath plan_experts(const ExpertShape& shape, int rows, const DeviceTraits& device,
                        bool deterministic);
// Whether the router's logits of so many rows are a product as any other; of fewer they are one of
// float32 lanes.
bool is_router_a_product(int rows, bool deterministic);

}  // namespace nanovllm::cuda
