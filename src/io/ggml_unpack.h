// What ggml's blocks hold, unpacked: codes to a byte each, many at a time, and scales. Layouts:
// ggml-common.h of https://github.com/ggml-org/ggml. A block begins at any address.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

namespace nanovllm::ggml {

constexpr int kSmall = 32;   // elements of a simple block
constexpr int kSuper = 256;  // elements of a K-quant's block

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// E2M1, doubled.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline uint16_t read_u16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline uint32_t read_u32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline float read_half(const uint8_t* at) { return half_to_float(read_u16(at)); }

// The low halves of bytes, then the high ones.
template <int kBytes>
void unpack_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < kBytes; ++i) {
    codes[i] = bytes[i] & 15;
    codes[kBytes + i] = bytes[i] >> 4;
  }
}

// Adds 16 to those of 32 codes whose bit is set. SSE2 compares lanes with bits of their own; it
// can't shift lanes by different counts.
inline void add_fifth_bits(uint32_t bits, uint8_t* codes) {
  static constexpr auto kBit = [] {
    std::array<uint32_t, 32> bit{};
    for (int i = 0; i < 32; ++i) bit[i] = uint32_t{1} << i;
    return bit;
  }();
  for (int i = 0; i < kSmall; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] + ((bits & kBit[i]) != 0 ? 16 : 0));
  }
}

// 64 bytes of four codes each: of 32 bytes the lowest ones, the next, ...; then of the other 32.
inline void unpack_quarters(const uint8_t* bytes, uint8_t* codes) {
  for (int half = 0; half < 2; ++half, bytes += 32, codes += 128) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = bytes[i] & 3;
      codes[32 + i] = bytes[i] >> 2 & 3;
      codes[64 + i] = bytes[i] >> 4 & 3;
      codes[96 + i] = bytes[i] >> 6;
    }
  }
}

// Q4_0, Q4_1, Q5_0 and Q5_1: a scale, a minimum or none, fifth bits or none, nibbles.
template <bool kHasFifthBits, bool kHasMinimum>
void unpack_q45(const uint8_t* block, uint8_t* codes) {
  block += kHasMinimum ? 4 : 2;
  unpack_nibbles<16>(block + (kHasFifthBits ? 4 : 0), codes);
  if constexpr (kHasFifthBits) add_fifth_bits(read_u32(block), codes);
}

// Q4_K, and Q5_K with the fifth bits of its codes.
template <bool kHasFifthBits>
void unpack_q45_k(const uint8_t* block, uint8_t* codes) {
  const uint8_t *high = block + 16, *nibbles = block + (kHasFifthBits ? 48 : 16);
  for (int pair = 0; pair < kSuper / 64; ++pair) {
    unpack_nibbles<32>(nibbles + 32 * pair, codes + 64 * pair);
  }
  for (int group = 0; kHasFifthBits && group < kSuper / 32; ++group, codes += 32) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(codes[i] | (high[i] >> group & 1) << 4);
    }
  }
}

inline void unpack_q2_k(const uint8_t* block, uint8_t* codes) {
  unpack_quarters(block + 16, codes);
}

inline void unpack_q3_k(const uint8_t* block, uint8_t* codes) {
  unpack_quarters(block + 32, codes);
  for (int bit = 0; bit < 8; ++bit, codes += 32) {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint8_t>(codes[i] | (block[i] >> bit & 1) << 2);
    }
  }
}

inline void unpack_q6_k(const uint8_t* block, uint8_t* codes) {
  unpack_quarters(block + 128, codes);
  for (int half = 0; half < 2; ++half, block += 64, codes += 128) {
    for (int i = 0; i < 64; ++i) {
      codes[i] = static_cast<uint8_t>(codes[i] << 4 | (block[i] & 15));
      codes[64 + i] = static_cast<uint8_t>(codes[64 + i] << 4 | block[i] >> 4);
    }
  }
}

inline void unpack_iq4_xs(const uint8_t* block, uint8_t* codes) {
  for (int group = 0; group < kSuper / 32; ++group) {
    unpack_nibbles<16>(block + 8 + 16 * group, codes + 32 * group);
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

inline int scale_of_q3_k(const uint8_t* block, int group) {
  const uint8_t* scales = block + 96;
  const int low_bits = scales[group % 8] >> group / 8 * 4 & 15;
  const int high_bits = scales[8 + group % 4] >> group / 4 * 2 & 3;
  return (low_bits | high_bits << 4) - 32;
}

inline int scale_of_iq4_xs(const uint8_t* block, int group) {
  const int low_bits = block[4 + group / 2] >> group % 2 * 4 & 15;
  const int high_bits = read_u16(block + 2) >> 2 * group & 3;
  return (low_bits | high_bits << 4) - 32;
}

// E8M0, whose NaN ggml takes for a power of two as well; halved, for the values are doubled.
inline float scale_of_mxfp4(const uint8_t* block) {
  const uint32_t exponent = block[0];
  return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

// The largest scales overflow with the largest values: infinite if one does.
inline float largest_of_mxfp4(const uint8_t* block) {
  if (block[0] <= 252) return 0;
  int largest = 0;
  for (int i = 1; i <= kSmall / 2; ++i) {
    largest = std::max<int>({largest, kMxfp4Values[block[i] & 7], kMxfp4Values[block[i] >> 4 & 7]});
  }
  return scale_of_mxfp4(block) * static_cast<float>(largest);
}

}  // namespace nanovllm::ggml
