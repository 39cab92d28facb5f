// Blocks of ggml's quantised types to numbers, one function a type. Layouts: ggml-common.h of
// https://github.com/ggml-org/ggml. A block begins at any address.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/ggml_formats.h"

namespace nanovllm {
namespace {

constexpr int kSmall = 32;   // elements of a simple block
constexpr int kSuper = 256;  // elements of a K-quant's block

uint16_t read_u16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint32_t read_u32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float read_half(const uint8_t* at) { return half_to_float(read_u16(at)); }

// Codes are unpacked to bytes, many at a time, before any becomes a float.
template <int kCount>
void multiply(const int8_t* codes, float scale, float* out, float minimum = 0) {
  for (int i = 0; i < kCount; ++i) out[i] = scale * static_cast<float>(codes[i]) - minimum;
}

void subtract(int8_t* codes, int offset) {
  for (int i = 0; i < kSmall; ++i) codes[i] = static_cast<int8_t>(codes[i] - offset);
}

// The low halves of bytes, then the high ones.
template <int kBytes>
void unpack_nibbles(const uint8_t* bytes, int8_t* codes) {
  for (int i = 0; i < kBytes; ++i) {
    codes[i] = static_cast<int8_t>(bytes[i] & 15);
    codes[kBytes + i] = static_cast<int8_t>(bytes[i] >> 4);
  }
}

// Adds 16 to those of 32 codes whose bit is set. SSE2 compares lanes with bits of their own; it
// can't shift lanes by different counts.
void add_fifth_bits(uint32_t bits, int8_t* codes) {
  static constexpr auto kBit = [] {
    std::array<uint32_t, 32> bit{};
    for (int i = 0; i < 32; ++i) bit[i] = uint32_t{1} << i;
    return bit;
  }();
  for (int i = 0; i < kSmall; ++i) {
    codes[i] = static_cast<int8_t>(codes[i] + ((bits & kBit[i]) != 0 ? 16 : 0));
  }
}

// 64 bytes of four codes each: of 32 bytes the lowest ones, the next, ...; then of the other 32.
void unpack_quarters(const uint8_t* bytes, int8_t* codes) {
  for (int half = 0; half < 2; ++half, bytes += 32, codes += 128) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<int8_t>(bytes[i] & 3);
      codes[32 + i] = static_cast<int8_t>(bytes[i] >> 2 & 3);
      codes[64 + i] = static_cast<int8_t>(bytes[i] >> 4 & 3);
      codes[96 + i] = static_cast<int8_t>(bytes[i] >> 6);
    }
  }
}

// 32 codes in 16 bytes that choose one of 16 values.
void look_up(const int8_t* values, const uint8_t* codes, float scale, float* out) {
  float scaled[16];
  multiply<16>(values, scale, scaled);
  for (int i = 0; i < kSmall / 2; ++i) {
    out[i] = scaled[codes[i] & 15];
    out[i + kSmall / 2] = scaled[codes[i] >> 4];
  }
}

// The 6-bit scales and minima of Q4_K and Q5_K.
struct ScalesAndMinima {
  explicit ScalesAndMinima(const uint8_t* packed) {
    for (int i = 0; i < 4; ++i) {
      scale[i] = packed[i] & 63;
      minimum[i] = packed[i + 4] & 63;
      scale[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | (packed[i] >> 2 & 48));
      minimum[i + 4] = static_cast<uint8_t>(packed[i + 8] >> 4 | (packed[i + 4] >> 2 & 48));
    }
  }
  uint8_t scale[8], minimum[8];
};

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// E2M1, doubled.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Q4_K, and Q5_K with the fifth bits of its codes.
template <bool kHasFifthBits>
float decode_q45_k(const uint8_t* block, float* out) {
  const float d = read_half(block), d_min = read_half(block + 2);
  const ScalesAndMinima packed(block + 4);
  const uint8_t *high = block + 16, *nibbles = block + (kHasFifthBits ? 48 : 16);
  for (int pair = 0; pair < kSuper / 64; ++pair, nibbles += 32) {
    int8_t codes[64];
    unpack_nibbles<32>(nibbles, codes);
    for (int group = 2 * pair; group < 2 * pair + 2; ++group, out += 32) {
      int8_t* from = codes + group % 2 * 32;
      for (int i = 0; kHasFifthBits && i < 32; ++i) {
        from[i] = static_cast<int8_t>(from[i] | (high[i] >> group & 1) << 4);
      }
      multiply<32>(from, d * static_cast<float>(packed.scale[group]), out,
                   d_min * static_cast<float>(packed.minimum[group]));
    }
  }
  return d + d_min;
}

// Q4_0, Q4_1, Q5_0 and Q5_1: a scale, a minimum or none, fifth bits or none, nibbles.
template <bool kHasFifthBits, bool kHasMinimum>
float decode_q45(const uint8_t* block, float* out) {
  const float d = read_half(block), minimum = kHasMinimum ? -read_half(block + 2) : 0.0f;
  block += kHasMinimum ? 4 : 2;
  int8_t codes[kSmall];
  unpack_nibbles<16>(block + (kHasFifthBits ? 4 : 0), codes);
  if constexpr (kHasFifthBits) add_fifth_bits(read_u32(block), codes);
  if constexpr (!kHasMinimum) subtract(codes, kHasFifthBits ? 16 : 8);
  multiply<kSmall>(codes, d, out, minimum);
  return d - minimum;
}

float decode_q8_0(const uint8_t* block, float* out) {
  const float d = read_half(block);
  int8_t codes[kSmall];
  std::memcpy(codes, block + 2, sizeof codes);
  multiply<kSmall>(codes, d, out);
  return d;
}

float decode_q2_k(const uint8_t* block, float* out) {
  const float d = read_half(block + 80), d_min = read_half(block + 82);
  int8_t codes[kSuper];
  unpack_quarters(block + 16, codes);
  for (int group = 0; group < kSuper / 16; ++group) {
    const float scale = d * static_cast<float>(block[group] & 15);
    const float minimum = d_min * static_cast<float>(block[group] >> 4);
    multiply<16>(codes + 16 * group, scale, out + 16 * group, minimum);
  }
  return d + d_min;
}

float decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t *high = block, *scales = block + 96;
  const float d = read_half(block + 108);
  int8_t codes[kSuper];
  unpack_quarters(block + 32, codes);
  for (int bit = 0; bit < 8; ++bit) {
    int8_t* to = codes + 32 * bit;
    for (int i = 0; i < 32; ++i) {
      to[i] = static_cast<int8_t>((to[i] | (high[i] >> bit & 1) << 2) - 4);
    }
  }
  for (int group = 0; group < kSuper / 16; ++group) {
    const int low_bits = scales[group % 8] >> group / 8 * 4 & 15;
    const int high_bits = scales[8 + group % 4] >> group / 4 * 2 & 3;
    const float scale = d * static_cast<float>((low_bits | high_bits << 4) - 32);
    multiply<16>(codes + 16 * group, scale, out + 16 * group);
  }
  return d;
}

float decode_q6_k(const uint8_t* block, float* out) {
  const float d = read_half(block + 208);
  int8_t scales[kSuper / 16], codes[kSuper];
  std::memcpy(scales, block + 192, sizeof scales);
  unpack_quarters(block + 128, codes);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    int8_t* to = codes + 128 * half;
    for (int i = 0; i < 64; ++i) {
      to[i] = static_cast<int8_t>((to[i] << 4 | (low[i] & 15)) - 32);
      to[64 + i] = static_cast<int8_t>((to[64 + i] << 4 | low[i] >> 4) - 32);
    }
  }
  for (int group = 0; group < kSuper / 16; ++group) {
    multiply<16>(codes + 16 * group, d * static_cast<float>(scales[group]), out + 16 * group);
  }
  return d;
}

float decode_iq4_nl(const uint8_t* block, float* out) {
  const float d = read_half(block);
  look_up(kIq4Values, block + 2, d, out);
  return d;
}

float decode_iq4_xs(const uint8_t* block, float* out) {
  const float d = read_half(block);
  const int high_bits = read_u16(block + 2);
  for (int group = 0; group < kSuper / 32; ++group) {
    const int low = block[4 + group / 2] >> group % 2 * 4 & 15;
    const float scale = d * static_cast<float>((low | (high_bits >> 2 * group & 3) << 4) - 32);
    look_up(kIq4Values, block + 8 + 16 * group, scale, out + 32 * group);
  }
  return d;
}

// The largest scales overflow with the largest values.
float decode_mxfp4(const uint8_t* block, float* out) {
  const uint32_t exponent = block[0];  // E8M0, whose NaN ggml takes for a power of two as well
  const uint32_t half = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  look_up(kMxfp4Values, block + 1, std::bit_cast<float>(half), out);
  float largest = 0;
  for (int i = 0; exponent > 252 && i < kSmall; ++i) largest = std::max(largest, std::abs(out[i]));
  return largest;
}

constexpr GgmlFormat kFormats[] = {
    {0, "F32", 1, 4, DType::kFloat32},
    {1, "F16", 1, 2, DType::kFloat16},
    {2, "Q4_0", 32, 18, {}, decode_q45<false, false>},
    {3, "Q4_1", 32, 20, {}, decode_q45<false, true>},
    {6, "Q5_0", 32, 22, {}, decode_q45<true, false>},
    {7, "Q5_1", 32, 24, {}, decode_q45<true, true>},
    {8, "Q8_0", 32, 34, {}, decode_q8_0},
    {10, "Q2_K", 256, 84, {}, decode_q2_k},
    {11, "Q3_K", 256, 110, {}, decode_q3_k},
    {12, "Q4_K", 256, 144, {}, decode_q45_k<false>},
    {13, "Q5_K", 256, 176, {}, decode_q45_k<true>},
    {14, "Q6_K", 256, 210, {}, decode_q6_k},
    {20, "IQ4_NL", 32, 18, {}, decode_iq4_nl},
    {23, "IQ4_XS", 256, 136, {}, decode_iq4_xs},
    {30, "BF16", 1, 2, DType::kBFloat16},
    {39, "MXFP4", 32, 17, {}, decode_mxfp4},
};

}  // namespace

const GgmlFormat* find_ggml_format(uint32_t id) {
  const auto* found = std::ranges::find(kFormats, id, &GgmlFormat::id);
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace nanovllm
