// Codes of a tile as operands of tensor cores: exact values in bfloat16, a word of two for each
// pair of code_layout.h, and what scales them.
//
// A whole number c < 128 is the bfloat16 0x4300 | c less 128, and c < 256 the bfloat16 c times
// 2^133, whether that has its leading one or not. A byte of E4M3 is, shifted, a bfloat16 that is
// too small by 2^120. All corrections are exact.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/linear/code_product_shape.h"

namespace nanovllm::cuda {

// x * y + z of both bfloat16.
__device__ inline uint32_t multiply_add_pairs(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
  return sum;
}
__device__ inline uint32_t add_pairs(uint32_t x, uint32_t y) {
  return multiply_add_pairs(x, 0x3f803f80u, y);
}
__device__ inline uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  return multiply_add_pairs(x, y, 0x80008000u);
}

// x & mask | set, which the compiler makes two instructions of where both are constants.
__device__ inline uint32_t mask_and_set(uint32_t x, uint32_t mask, uint32_t set) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(set));
  return y;
}

// Which of a tile's lanes (code_layout.h) a thread is where a warp has a tile.
__device__ inline int lane_in_warp() { return static_cast<int>(threadIdx.x) % 32; }

// What the values of a tile's codes depend on beside the codes.
struct CodeValues {
  uint32_t added[2] = {};           // of whole numbers of rows r and r + 8, see added_to_codes()
  const uint32_t* pairs = nullptr;  // of a table: this lane's copy of the words for two codes
};

// What values of a tile's rows from 8 on are parts of: of 4 bits they are made quarters, which
// saves their shifts.
constexpr float upper_unit(CodeKind kind) { return kind == CodeKind::k4 ? 4.f : 1.f; }

// What is added, twice, to the codes of rows r, raised by 128, and of rows r + 8, likewise or of
// 4 bits as quarters, of which `taken` is taken.
template <CodeKind kKind>
__device__ inline uint2 added_to_codes(const CodeShape& shape, float2 taken) {
  const auto first = static_cast<float>(shape.first_value);
  const float lower = first - 128.f - taken.x;
  const float upper =
      kKind == CodeKind::k4 ? (first - taken.y) * (1 / upper_unit(kKind)) : first - 128.f - taken.y;
  return {pack_bfloat16(lower, lower), pack_bfloat16(upper, upper)};
}

// kSteps words of a lane of a plane, from the word of `step` on.
template <int kSteps>
__device__ inline void load_words(uint32_t (&w)[kSteps], const char* at) {
  if constexpr (kSteps == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
  } else if constexpr (kSteps == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(at);
    w[0] = v.x;
    w[1] = v.y;
  } else {
    w[0] = *reinterpret_cast<const uint32_t*>(at);
  }
}

// x shifted left, or right where `left` is negative.
__device__ inline uint32_t shift(uint32_t x, int left) {
  return left >= 0 ? x << left : x >> -left;
}

// The operands of kSteps steps from `step` on, a multiple of kSteps, of whole numbers of less than
// 8 bits, or of a table.
template <CodeKind kKind, int kSteps>
__device__ inline void load_small_codes(uint32_t (&a)[kSteps][4], const char* unit, int step,
                                        const CodeValues& values, int lane) {
  constexpr int kLowBytes = 512;
  constexpr uint32_t kRaised = 0x43004300u;
  uint32_t low[kSteps];
  load_words<kSteps>(low, unit + lane * 16 + step * 4);
  uint32_t high[2] = {};  // of 5 bits the first alone, of 6 by step / 2
  if constexpr (kKind == CodeKind::k5) {
    high[0] = *reinterpret_cast<const uint32_t*>(unit + kLowBytes + lane * 4);
  }
  if constexpr (kKind == CodeKind::k6) {
    const auto* const words = reinterpret_cast<const uint32_t*>(unit + kLowBytes + lane * 8);
    if (step < 2) high[0] = words[0];
    if (step + kSteps > 2) high[1] = words[1];
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if constexpr (kKind == CodeKind::kTable4) {
        a[s][pair] = values.pairs[(low[s] >> 8 * pair & 255) * kTableCopies];
        continue;
      }
      if constexpr (kKind == CodeKind::k4) {
        const uint32_t two = pair < 2 ? low[s] : low[s] >> 8;
        constexpr uint32_t kTwoTo127 = 0x7f007f00u;  // 2^133 / 16 / 4
        a[s][pair] = pair % 2 == 0
                         ? add_pairs(mask_and_set(two, 0x000f000fu, kRaised), values.added[0])
                         : multiply_add_pairs(two & 0x00f000f0u, kTwoTo127, values.added[1]);
        continue;
      }
      uint32_t code = mask_and_set(low[s] >> 4 * pair, 0x000f000fu, kRaised);
      const int place = (step + s) * 4 + pair;
      if constexpr (kKind == CodeKind::k5) {
        code = mask_and_set(shift(high[0], 4 - place), 0x00100010u, code);
      }
      if constexpr (kKind == CodeKind::k6) {
        code = mask_and_set(shift(high[(step + s) / 2], 4 - place % 8 * 2), 0x00300030u, code);
      }
      a[s][pair] = add_pairs(code, values.added[pair % 2]);
    }
  }
}

// The same of bytes.
template <CodeKind kKind, int kSteps>
__device__ inline void load_bytes(uint32_t (&a)[kSteps][4], const char* unit, int step, int lane) {
  constexpr int kPlaneBytes = 512;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    uint32_t words[2];
    load_words<2>(words, unit + (step + s) / 2 * kPlaneBytes + lane * 16 + (step + s) % 2 * 8);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t w = words[pair / 2];
      const bool is_high = pair % 2 == 1;
      if constexpr (kKind == CodeKind::kInt8) {
        const uint32_t x = is_high ? w >> 8 : w;
        // Of negative numbers 256 is taken, of others 128.
        a[s][pair] = add_pairs(mask_and_set(x, 0x007f007fu, 0x43004300u),
                               mask_and_set(x, 0x00800080u, 0xc300c300u));
      } else {
        const uint32_t magnitude = (is_high ? w >> 4 : w << 4) & 0x07f007f0u;
        const uint32_t sign = (is_high ? w : w << 8) & 0x80008000u;
        constexpr uint32_t kTwoTo120 = 0x7b807b80u;
        a[s][pair] = multiply_pairs(magnitude | sign, kTwoTo120);
      }
    }
  }
}

template <CodeKind kKind, int kSteps>
__device__ inline void load_codes(uint32_t (&a)[kSteps][4], const char* unit, int step,
                                  const CodeValues& values, int lane = lane_in_warp()) {
  if constexpr (kKind == CodeKind::kInt8 || kKind == CodeKind::kE4M3) {
    load_bytes<kKind, kSteps>(a, unit, step, lane);
  } else {
    load_small_codes<kKind, kSteps>(a, unit, step, values, lane);
  }
}

// Of the rows r and r + 8 of a tile.
struct PairOfScales {
  float2 scale = {1, 1}, offset = {0, 0};
};

// Number `at` of a part of a header: of both rows.
__device__ inline float2 load_scale(ScaleKind kind, const char* part, int at) {
  if (kind == ScaleKind::kFloat32) return reinterpret_cast<const float2*>(part)[at];
  const uint32_t pair = reinterpret_cast<const uint32_t*>(part)[at];
  if (kind == ScaleKind::kBFloat16) return unpack_bfloat16(pair);
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// Of the group of a column of the block. Of WeightLayout::kSuper the scale is s t and the offset
// -(m n), which are exact; the factor of all scales is not in it.
__device__ inline PairOfScales load_scales(const CodeShape& shape, const char* header, int column,
                                           int r) {
  PairOfScales got;
  const bool has_offsets = shape.offsets != OffsetKind::kNone;
  const int at = (column >> shape.super_shift) * 8 + r;
  const int bytes = (kBlockColumns * kTileRows >> shape.super_shift) *
                    (shape.scales == ScaleKind::kFloat32 ? 4 : 2);
  got.scale = load_scale(shape.scales, header, at);
  if (has_offsets) got.offset = load_scale(shape.scales, header + bytes, at);
  if (!shape.is_super) return got;
  const auto* const codes = reinterpret_cast<const char2*>(header + (has_offsets ? 2 : 1) * bytes);
  const int of_group = (column >> shape.group_shift) * 8 + r;
  const char2 t = codes[of_group];
  got.scale.x *= static_cast<float>(static_cast<signed char>(t.x));
  got.scale.y *= static_cast<float>(static_cast<signed char>(t.y));
  if (!has_offsets) return got;
  const char2 n = codes[(kBlockColumns * 8 >> shape.group_shift) + of_group];
  got.offset.x *= -static_cast<float>(static_cast<signed char>(n.x));
  got.offset.y *= -static_cast<float>(static_cast<signed char>(n.y));
  return got;
}

// The words for two codes of a table, kTableCopies of each, by all of a block's threads.
__device__ inline void fill_pair_table(const CodeShape& shape, uint32_t* table) {
  for (int i = static_cast<int>(threadIdx.x); i < 256 * kTableCopies;
       i += static_cast<int>(blockDim.x)) {
    const int codes = i / kTableCopies;
    table[i] = shape.table[codes % 16] | static_cast<uint32_t>(shape.table[codes / 16]) << 16;
  }
}

}  // namespace nanovllm::cuda
