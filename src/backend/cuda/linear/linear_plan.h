// Which kernels multiply: a pure function of shapes and of what a device has.
#pragma once

#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/linear/linear_parts.h"
#include "backend/cuda/linear/linear_skinny_plan.h"

namespace nanovllm::cuda {

// Of a weight in codes, which more rows would decode again and again.
constexpr int kMaxCodeRows = 64;

enum class ProductPath {
  kStream,     // linear_skinny.cu
  kFewParts,   // linear_parts_few.cu
  kManyParts,  // linear_parts_many.cu, whose order of sums is kFewParts'
  kFloat,      // linear_float.cu
  kCublas,     // product.h
  kCodes,      // code_product.cuh
  kDecoded,    // code_decode.cu, a piece of the weight at a time, and product.h
};
const char* to_string(ProductPath path);

struct ProductPlan {
  ProductPath path = ProductPath::kCublas;
  // Of the path of this name.
  skinny::Plan stream = {};
  FewPartsPlan few_parts = {};
  ManyPartsPlan many_parts = {};
};

// Of a product as its weight and rows say, of x in `dtype`, without norm and with Epilogue::kStore.
// In a fixed order all rows of a weight take paths of one order.
ProductPlan plan_product(const SkinnyProduct& product, DType dtype, const DeviceTraits& device);

}  // namespace nanovllm::cuda
