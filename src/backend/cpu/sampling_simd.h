// The bodies of SamplingKernels in the compiler's own vector types, which become AVX-512, AVX2 or
// SSE2 instructions by the flags of the file that includes this. Everything is local to that file:
// nothing here may ever be shared between instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/sampling_kernels.h"

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

// exp((x - top) * scale) within 2 ulp where x >= lowest, else 0. Cephes' polynomial on
// [-ln2/2, ln2/2], with ln2 in two parts so that the reduction is exact.
NANOVLLM_INLINE Floats weigh(Floats x, const WeightParams& params, float lowest) {
  const Ints kept = x >= lowest;
  const Floats y = kept ? (x - params.top) * params.scale : Floats{};
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

NANOVLLM_INLINE float sum(const Floats (&total)[kParts]) {
  float s[kLanes];
  std::memcpy(s, total, sizeof s);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  }
  return s[0];
}

void block_max(const float* x, int64_t n, float* max) {
  float copy[kSampleBlock];
  for (int64_t b = 0; b * kSampleBlock < n; ++b) {
    const float* block = whole_block(x + b * kSampleBlock, n - b * kSampleBlock, copy);
    Floats best = load(block);
    Ints is_nan = best != best;
    for (int i = kWidth; i < kSampleBlock; i += kWidth) {
      const Floats v = load(block + i);
      is_nan |= v != v;
      best = v > best ? v : best;
    }
    float lanes[kWidth];
    std::memcpy(lanes, &best, sizeof lanes);
    for (int half = kWidth / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i)
        lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
    }
    int32_t any_nan = 0;
    for (int i = 0; i < kWidth; ++i) any_nan |= is_nan[i];
    max[b] = any_nan != 0 ? __builtin_nanf("") : lanes[0];
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
      for (int p = 0; p < kParts; ++p)
        total[p] += weigh(load(block + i + p * kWidth), params, lowest);
    }
    mass[b] = sum(total);
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

#undef NANOVLLM_INLINE
#undef NANOVLLM_VECTOR_BYTES

}  // namespace
}  // namespace nanovllm
