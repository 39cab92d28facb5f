#include "backend/cuda/linear/linear_plan.h"

namespace nanovllm::cuda {

const char* to_string(ProductPath path) {
  switch (path) {
    case ProductPath::kStream:
      return "stream of weights";
    case ProductPath::kFloat:
      return "float32 lanes";
    case ProductPath::kCublas:
      return "cuBLASLt";
    case ProductPath::kCodes:
      return "products with codes";
    case ProductPath::kDecoded:
      return "codes decoded for cuBLASLt";
  }
  return "";
}

ProductPlan plan_product(const SkinnyProduct& product, DType dtype, const cudaDeviceProp& device) {
  if (product.layout != WeightLayout::kPlain) {
    const bool takes_codes = product.rows <= kMaxCodeRows || product.fixed_order;
    return {takes_codes ? ProductPath::kCodes : ProductPath::kDecoded};
  }
  if (dtype != DType::kBFloat16) {
    return {product.fixed_order ? ProductPath::kFloat : ProductPath::kCublas};
  }
  const skinny::Plan plan = skinny::plan_of(product, device);
  if (plan.tiles == 0) return {};
  return {ProductPath::kStream, plan};
}

}  // namespace nanovllm::cuda
