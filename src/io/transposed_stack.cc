#include "io/transposed_stack.h"

#include <cstring>

namespace nanovllm {
namespace {

float read_number(const char* at, DType dtype) {
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBFloat16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

}  // namespace

void TransposedStack::decode(int64_t row, int64_t col, int64_t count, float* out) const {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  const int64_t first = (row / rows_ * cols_ + col) * rows_ + row % rows_;
  const char* at = data_ + first * size;
  for (int64_t i = 0; i < count; ++i, at += rows_ * size) out[i] = read_number(at, dtype_);
}

}  // namespace nanovllm
