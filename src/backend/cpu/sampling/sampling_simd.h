// The bodies of SamplingKernels in the compiler's own vector types, which become AVX-512, AVX2 or
// SSE2 instructions by the flags of the file that includes this. Everything is local to that file:
// nothing here may ever be shared between instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/sampling/sampling_kernels.h"

namespace nanovllm {
namespace {

#if defined(__AVX512F__)
#  define NANOVLLM_VECTOR_BYTES 64
#elif defined(__AVX2__)
#  define NANOVLLM_VECTOR_BYTES 32
#else
#  define NANOVLLM_VECTOR_BYTES 16
#endif
#define NANOVLLM_INLINE inline __attribute__((always_inline))

using Floats = float __attribute__((vector_size(NANOVLLM_VECTOR_BYTES)));
using Ints = int32_t __attribute__((vector_size(NANOVLLM_VECTOR_BYTES)));

constexpr int kWidth = NANOVLLM_VECTOR_BYTES / 4;  // floats in a vector
// Sums are kept in 16 lanes whatever the width, so that AVX2 and AVX-512 give the same bits.
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kWidth;

NANOVLLM_INLINE Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// A whole block at x: x itself, or a copy filled up with -inf, which weighs and counts nothing.
NANOVLLM_INLINE const float* whole_block(const float* x, int64_t n, float* copy) {
  if (n >= kSampleBlock) return x;
  for (int i = 0; i < kSampleBlock; ++i) copy[i] = i < n ? x[i] : -__builtin_inff();
  return copy;
}

// Below this a weight is 0: -87 is where exp(x) becomes denormal. -inf never weighs anything.
NANOVLLM_INLINE float lowest_that_weighs(const WeightParams& params) {
  const float visible = params.top - 87.0f / params.scale;
  const float lowest = params.threshold > visible ? params.threshold : visible;
  return lowest > -__FLT_MAX__ ? lowest : -__FLT_MAX__;
}

// exp((x - top) * scale) within 2 ulp where x >= lowest and that is a normal float, else 0. Cephes'
// polynomial on [-ln2/2, ln2/2], with ln2 in two parts so that the reduction is exact.
NANOVLLM_INLINE Floats weigh(Floats x, const WeightParams& params, float lowest) {
  const Floats distance = (x - params.top) * params.scale;
  // `lowest` is rounded, at large logits by more than what lies between -87 and an overflow.
  const Ints kept = (x >= lowest) & (distance >= -87.0f);
  const Floats y = kept ? distance : Floats{};
  const Ints n = __builtin_convertvector(y * 1.44269504088896341f - 0.5f, Ints);
  const Floats nf = __builtin_convertvector(n, Floats);
  const Floats r = y - nf * 0.693359375f - nf * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints exponent = (n + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  return kept ? p * power : Floats{};
}

// Written out, because compilers make loops over a few lanes slow.
template <typename T, typename Op>
NANOVLLM_INLINE T reduce_eight(const T* v, Op op) {
  return op(op(op(v[0], v[4]), op(v[2], v[6])), op(op(v[1], v[5]), op(v[3], v[7])));
}

template <typename Op>
NANOVLLM_INLINE float reduce(const Floats (&v)[kParts], Op op) {
  float lanes[kLanes];
  for (int p = 0; p < kParts; ++p) std::memcpy(lanes + p * kWidth, &v[p], sizeof v[p]);
  return op(reduce_eight(lanes, op), reduce_eight(lanes + 8, op));
}

NANOVLLM_INLINE bool any(const Ints (&v)[kParts]) {
  uint64_t lanes[kLanes / 2];
  for (int p = 0; p < kParts; ++p) std::memcpy(lanes + p * kWidth / 2, &v[p], sizeof v[p]);
  return reduce_eight(lanes, [](uint64_t a, uint64_t b) { return a | b; }) != 0;
}

void block_max(const float* x, int64_t n, float* max) {
  float copy[kSampleBlock];
  for (int64_t b = 0; b * kSampleBlock < n; ++b) {
    const float* block = whole_block(x + b * kSampleBlock, n - b * kSampleBlock, copy);
    Floats best[kParts];
    for (int part = 0; part < kParts; ++part) best[part] = load(block + part * kWidth);
    Ints is_nan[kParts] = {};
    for (int i = 0; i < kSampleBlock; i += kLanes) {
      for (int part = 0; part < kParts; ++part) {
        const Floats v = load(block + i + part * kWidth);
        is_nan[part] |= v != v;  // NOLINT(misc-redundant-expression): only NaN differs from itself
        best[part] = v > best[part] ? v : best[part];
      }
    }
    max[b] = any(is_nan) ? __builtin_nanf("")
                         : reduce(best, [](float p, float q) { return p > q ? p : q; });
  }
}

void weights(const float* x, int n, WeightParams params, float* weight) {
  const float lowest = lowest_that_weighs(params);
  float copy[kSampleBlock];
  const float* block = whole_block(x, n, copy);
  for (int i = 0; i < kSampleBlock; i += kWidth) {
    const Floats w = weigh(load(block + i), params, lowest);
    std::memcpy(weight + i, &w, sizeof w);
  }
}

void block_mass(const float* x, int64_t n, const float* max, WeightParams params, float* mass) {
  const float lowest = lowest_that_weighs(params);
  float copy[kSampleBlock];
  for (int64_t b = 0; b * kSampleBlock < n; ++b) {
    if (max[b] < lowest) {
      mass[b] = 0;
      continue;
    }
    const float* block = whole_block(x + b * kSampleBlock, n - b * kSampleBlock, copy);
    Floats total[kParts] = {};
    for (int i = 0; i < kSampleBlock; i += kLanes) {
      for (int part = 0; part < kParts; ++part) {
        total[part] += weigh(load(block + i + part * kWidth), params, lowest);
      }
    }
    mass[b] = reduce(total, [](float p, float q) { return p + q; });
  }
}

void bins(const float* x, int n, float top, float bins_per_unit, int last_bin, int32_t* bin) {
  float copy[kSampleBlock];
  const float* block = whole_block(x, n, copy);
  const Floats last = Floats{} + static_cast<float>(last_bin);
  for (int i = 0; i < kSampleBlock; i += kWidth) {
    const Floats v = (top - load(block + i)) * bins_per_unit;
    const Ints result = __builtin_convertvector(v < last ? v : last, Ints);
    std::memcpy(bin + i, &result, sizeof result);
  }
}

int64_t count_at_least(const float* x, int64_t n, float value) {
  Ints lanes{};  // a row is shorter than 2^31
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) lanes -= load(x + i) >= value;
  int64_t count = 0;
  for (int lane = 0; lane < kWidth; ++lane) count += lanes[lane];
  for (; i < n; ++i) count += x[i] >= value;
  return count;
}

// A whole block, of four words.
NANOVLLM_INLINE void mask_block(float* block, const uint32_t* words) {
  uint32_t lane_bits[32];
  for (int i = 0; i < 32; ++i) lane_bits[i] = 1u << i;
  const Floats banned = Floats{} - __builtin_inff();
  for (int i = 0; i < kSampleBlock; i += kWidth) {
    Ints bits;
    std::memcpy(&bits, lane_bits + i % 32, sizeof bits);
    bits &= static_cast<int32_t>(words[i / 32]);
    const Floats kept = bits != 0 ? load(block + i) : banned;
    std::memcpy(block + i, &kept, sizeof kept);
  }
}

void mask(float* x, int64_t n, const uint32_t* words, float* max) {
  constexpr int kWords = kSampleBlock / 32;
  for (int64_t b = 0; b * kSampleBlock < n; ++b, x += kSampleBlock, words += kWords) {
    const int64_t size = n - b * kSampleBlock;
    if (size < kSampleBlock) {
      for (int64_t i = 0; i < size; ++i) {
        if ((words[i / 32] >> i % 32 & 1) == 0) x[i] = -__builtin_inff();
      }
    } else {
      uint32_t all = ~0u;
      for (int w = 0; w < kWords; ++w) all &= words[w];
      if (all == ~0u) continue;
      mask_block(x, words);
    }
    block_max(x, size < kSampleBlock ? size : kSampleBlock, max + b);
  }
}

#undef NANOVLLM_INLINE
#undef NANOVLLM_VECTOR_BYTES

}  // namespace
}  // namespace nanovllm
