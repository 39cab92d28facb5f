// Sixteen floats as an array, for any processor; see simd.h for what each function means.
#pragma once

#include <cstdint>
#include <cstring>

namespace nanovllm {
namespace {

struct Simd {
  static constexpr int kLanes = 16;
  struct F {
    float lane[kLanes];
  };

  static F set1(float x) {
    return each([&](int) { return x; });
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F x) { store_n(p, x, kLanes); }
  static F load_n(const float* p, int n) {
    return each([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store_n(float* p, F x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x.lane[i];
  }

  static F load(const uint16_t* p) {
    return each([&](int i) { return as_float(static_cast<uint32_t>(p[i]) << 16); });
  }
  static F load_n(const uint16_t* p, int n) {
    return each([&](int i) { return i < n ? as_float(static_cast<uint32_t>(p[i]) << 16) : 0.0f; });
  }
  static void store(uint16_t* p, F x) { store_n(p, x, kLanes); }
  static void store_n(uint16_t* p, F x, int n) {
    for (int i = 0; i < n; ++i) p[i] = narrow(x.lane[i]);
  }

  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // Two roundings: a fused one in software would be fifty times slower.
  static F fma(F a, F b, F c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static F abs(F x) {
    return each([&](int i) { return as_float(as_bits(x.lane[i]) & 0x7fffffffu); });
  }
  // Adding 1.5 * 2^23 leaves no bits for a fraction; numbers from 2^22 on stay as they are.
  static F round(F x) {
    return each([&](int i) {
      const float limit = 4194304.0f, magic = 12582912.0f;
      const float v = x.lane[i];
      return v > -limit && v < limit ? (v + magic) - magic : v;
    });
  }
  static F times_power_of_2(F x, F n) {
    return each([&](int i) {
      const float v = n.lane[i];
      const int exponent = v > -127.0f ? (v < 128.0f ? static_cast<int>(v) : 128) : -127;
      return x.lane[i] * as_float(static_cast<uint32_t>(exponent + 127) << 23);
    });
  }
  static F if_negative(F x, F then, F otherwise) {
    return each([&](int i) { return x.lane[i] < 0 ? then.lane[i] : otherwise.lane[i]; });
  }
  static F keep_lanes(F x, F otherwise, int begin, int end) {
    return each([&](int i) { return i >= begin && i < end ? x.lane[i] : otherwise.lane[i]; });
  }

  static float reduce_add(F x) {
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) x.lane[i] += x.lane[i + width];
    }
    return x.lane[0];
  }
  static float reduce_max(F x) {
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        x.lane[i] = x.lane[i] > x.lane[i + width] ? x.lane[i] : x.lane[i + width];
      }
    }
    return x.lane[0];
  }

  // Sixteen pairs of bfloat16 as the even and the odd elements.
  static void load_pairs(const uint16_t* p, F* even, F* odd) {
    *even = each([&](int i) { return as_float(static_cast<uint32_t>(p[2 * i]) << 16); });
    *odd = each([&](int i) { return as_float(static_cast<uint32_t>(p[2 * i + 1]) << 16); });
  }

 private:
  template <typename Fn>
  static F each(Fn fn) {
    F r;
    for (int i = 0; i < kLanes; ++i) r.lane[i] = fn(i);
    return r;
  }
  static uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
  static uint16_t narrow(float x) {  // to nearest, ties to even; NaN stays NaN
    const uint32_t bits = as_bits(x);
    if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};

}  // namespace
}  // namespace nanovllm
