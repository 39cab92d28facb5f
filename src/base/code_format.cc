#include "base/code_format.h"

#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace nanovllm {

bool are_int8(const CodeFormat& format) {
  for (int code = 0; code < 256; ++code) {
    if (format.values[code] != static_cast<float>(static_cast<int8_t>(code))) return false;
  }
  return true;
}

bool are_e4m3(const CodeFormat& format) {
  constexpr int kNaN = 127;
  for (int code = 0; code < 256; ++code) {
    if (code % 128 == kNaN) continue;
    if (format.values[code] != e4m3_to_float(static_cast<uint8_t>(code))) return false;
  }
  return true;
}

float read_scale(ScaleKind kind, const char* at) {
  if (kind == ScaleKind::kFloat32) {
    float number;
    std::memcpy(&number, at, sizeof number);
    return number;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return kind == ScaleKind::kFloat16 ? half_to_float(bits) : to_float(BFloat16{bits});
}

void write_scale(ScaleKind kind, float number, char* at) {
  if (kind == ScaleKind::kFloat32) {
    std::memcpy(at, &number, sizeof number);
  } else {
    const bool is_half = kind == ScaleKind::kFloat16;
    const uint16_t bits = is_half ? float_to_half(number) : to_bfloat16(number).bits;
    std::memcpy(at, &bits, sizeof bits);
  }
  NANOVLLM_CHECK(read_scale(kind, at) == number);
}

}  // namespace nanovllm
