// Matrix products and packing for any processor: GCC's vector types become whatever it has.
// Compiled without contraction to FMA, which could differ from one tile size to another.
#include <bit>
#include <cstring>

#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_loops.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

using Floats __attribute__((vector_size(16))) = float;
using Words __attribute__((vector_size(16))) = uint32_t;

struct PortableOps {
  using Vec = Floats;
  static constexpr int kLanes = 4;
  static constexpr int kAskingRows = 1;
  static constexpr int kMaxRows = 4;
  // At most 8 accumulators: 16 registers must also hold weights and activations.
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }

  static Vec zero() { return Vec{}; }
  static Vec load(const float* p) {
    Vec value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  static void store(float* p, Vec value) { std::memcpy(p, &value, sizeof value); }
  static Vec add(Vec a, Vec b) { return a + b; }
  static inline __attribute__((always_inline)) void prefetch(const char* p) {
    __builtin_prefetch(p, 0, 2);
  }
  static inline __attribute__((always_inline)) void prefetch_near(const char* p) {
    __builtin_prefetch(p);
  }
  static void store_f32(char* p, int lanes, Vec value) {
    std::memcpy(p, &value, static_cast<size_t>(lanes) * 4);
  }
  static void store_bf16(char* p, int lanes, Vec value) {
    for (int i = 0; i < lanes; ++i) {
      const BFloat16 rounded = to_bfloat16(value[i]);
      std::memcpy(p + i * 2, &rounded, 2);
    }
  }
  static float load_float(const char* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
};

struct FloatOps : PortableOps {
  using A = Floats;
  using B = Floats;
  static constexpr int kRowBytes = 4;
  template <int rows>
  static A load_a(const char* p) {
    return Floats{} + load_float(p);
  }
  static B load_b(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static Vec multiply_add(Vec acc, A a, B b) { return acc + a * b; }
};

// A step of bfloat16 weights holds two values of k, side by side in a word; as float32 they are
// the bits moved up.
struct WideningOps : PortableOps {
  struct A {
    Floats even, odd;
  };
  using B = A;
  static constexpr int kRowBytes = 8;
  static constexpr bool kLittleEndian = std::endian::native == std::endian::little;
  template <int rows>
  static A load_a(const char* p) {
    return {Floats{} + load_float(p), Floats{} + load_float(p + rows * 4)};
  }
  static B load_b(const char* p) {
    Words pair;
    std::memcpy(&pair, p, sizeof pair);
    const Floats low = std::bit_cast<Floats>(pair << 16);
    const Floats high = std::bit_cast<Floats>(pair & 0xffff0000u);
    return kLittleEndian ? B{low, high} : B{high, low};
  }
  static Vec multiply_add(Vec acc, A a, B b) { return acc + a.even * b.even + a.odd * b.odd; }
};

}  // namespace

void linear_bf16_portable(const LinearBlock& block) { LinearLoops<WideningOps>::run(block); }

void linear_f32_portable(const LinearBlock& block) { LinearLoops<FloatOps>::run(block); }

void transpose_portable(const void* const* rows, int num_rows, int64_t count, void* out,
                        int64_t stride, bool /*past_caches*/) {
  for (int64_t d = 0; d < count; ++d) {
    for (int r = 0; r < num_rows; ++r) {
      std::memcpy(static_cast<char*>(out) + (d * stride + r) * 4,
                  static_cast<const char*>(rows[r]) + d * 4, 4);
    }
  }
}

void bf16_to_f32_portable(const void* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    BFloat16 value;
    std::memcpy(&value, static_cast<const char*>(in) + i * 2, 2);
    out[i] = to_float(value);
  }
}

void f16_to_f32_portable(const void* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, static_cast<const char*>(in) + i * 2, 2);
    out[i] = half_to_float(half);
  }
}

void f32_to_bf16_portable(const void* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, static_cast<const char*>(in) + i * 4, 4);
    out[i] = to_bfloat16(value).bits;
  }
}

}  // namespace nanovllm
