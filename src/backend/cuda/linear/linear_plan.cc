#include "backend/cuda/linear/linear_plan.h"

namespace nanovllm::cuda {

const char* to_string(ProductPath path) {
  switch (path) {
    case ProductPath::kStream:
      return "stream of weights";
    case ProductPath::kFewParts:
      return "parts of K by mma";
    case ProductPath::kManyParts:
      return "parts of K by wgmma";
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

ProductPlan plan_product(const SkinnyProduct& product, DType dtype, const DeviceTraits& device) {
  if (product.layout != WeightLayout::kPlain) {
    const bool takes_codes = product.rows <= kMaxCodeRows || product.fixed_order;
    return {takes_codes ? ProductPath::kCodes : ProductPath::kDecoded};
  }
  if (dtype != DType::kBFloat16) {
    return {product.fixed_order ? ProductPath::kFloat : ProductPath::kCublas};
  }
  const PartsProduct parts = in_parts(product);
  const int multiprocessors = device.num_multiprocessors();
  const bool takes = device.has_wgmma && takes_parts(parts);
  if (takes && product.fixed_order && product.rows > kMaxFewPartsRows) {
    return {.path = ProductPath::kManyParts, .many_parts = plan_many_parts(parts, multiprocessors)};
  }
  const skinny::Plan stream = skinny::plan_of(product, device.properties);
  if (takes && (product.fixed_order || (stream.tiles > 0 && do_few_parts_pay(parts)))) {
    return {.path = ProductPath::kFewParts, .few_parts = plan_few_parts(parts, multiprocessors)};
  }
  if (stream.tiles == 0) return {};
  return {.path = ProductPath::kStream, .stream = stream};
}

}  // namespace nanovllm::cuda
