// Element types of tensors, and numbers of 8 and 16 bits in plain C++.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace nanovllm {

enum class DType { kFloat32, kBFloat16, kFloat16, kInt32 };

constexpr size_t size_of(DType dtype) {  // bytes
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
  }
  return 0;
}

constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt32:
      return "int32";
  }
  return "?";
}

struct BFloat16 {
  uint16_t bits;
};

constexpr float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even, as hardware does; NaN stays NaN.
constexpr BFloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// IEEE half precision to float; exact.
constexpr float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// Rounds to nearest, ties to even, as hardware does: to infinity from 65520 on; NaN stays NaN.
constexpr uint16_t float_to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half = 0x7c00;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude < 0x38800000u) {  // 2^-14
    // Neighbours between 0.5 and 1 differ as much as subnormal numbers do.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 0x477ff000u) {  // 65520
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// E4M3, that is float8 with 4 bits of exponent and 3 of mantissa, without infinities; exact.
constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
  const float subnormal = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

}  // namespace nanovllm
