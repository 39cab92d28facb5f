// What row_kernels.h declares, written once over simd.h. Sums have one order: element i belongs to
// chain i / 16 mod 4, lane i mod 16; chains are added first, lanes last.
#pragma once

#include "backend/cpu/layer/row_kernels.h"
#include "backend/cpu/simd.h"

namespace nanovllm {
namespace {

template <typename T>
Floats load_at(const T* x, int64_t i, int64_t n) {
  return i + kLanes <= n ? Simd::load(x + i) : Simd::load_n(x + i, static_cast<int>(n - i));
}
template <typename T>
void store_at(T* x, int64_t i, int64_t n, Floats value) {
  if (i + kLanes <= n) {
    Simd::store(x + i, value);
  } else {
    Simd::store_n(x + i, value, static_cast<int>(n - i));
  }
}

template <typename T>
float mean_square(const T* x, int64_t n) {
  Floats chain[4] = {Simd::set1(0), Simd::set1(0), Simd::set1(0), Simd::set1(0)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int c = 0; c < 4; ++c) {
      const Floats v = Simd::load(x + i + c * kLanes);
      chain[c] = Simd::fma(v, v, chain[c]);
    }
  }
  for (int c = 0; i < n; i += kLanes, ++c) {
    const Floats v = load_at(x, i, n);
    chain[c] = Simd::fma(v, v, chain[c]);
  }
  const float sum =
      Simd::reduce_add(Simd::add(Simd::add(chain[0], chain[1]), Simd::add(chain[2], chain[3])));
  return sum / static_cast<float>(n);
}

// x / (1 + e^-x)
inline Floats silu(Floats x) {
  return Simd::div(x, Simd::add(Simd::set1(1), exp(Simd::sub(Simd::set1(0), x))));
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), that is x / (1 + e^-2u).
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = Simd::mul(Simd::mul(x, x), Simd::set1(0.044715f));
  const Floats u2 =
      Simd::mul(Simd::fma(cubic, x, x), Simd::set1(-1.5957691216057308f));  // -2 sqrt(2 / pi)
  return Simd::div(x, Simd::add(Simd::set1(1), exp(u2)));
}

// x erfc(-x / sqrt(2)) / 2, with erfc(z) = t P(t) e^-z^2 for z >= 0 and t = 1 / (1 + z / 2); P is
// the minimax polynomial of degree 8, relative error 5e-8.
inline Floats gelu(Floats x) {
  const Floats z = Simd::mul(Simd::abs(x), Simd::set1(0.70710678118654752f));
  const Floats t = Simd::div(Simd::set1(2), Simd::add(Simd::set1(2), z));
  Floats p = Simd::set1(-0.059363801032304764f);
  p = Simd::fma(p, t, Simd::set1(0.28601381182670593f));
  p = Simd::fma(p, t, Simd::set1(-0.49017927050590515f));
  p = Simd::fma(p, t, Simd::set1(0.28147488832473755f));
  p = Simd::fma(p, t, Simd::set1(-0.028971755877137184f));
  p = Simd::fma(p, t, Simd::set1(0.20367838442325592f));
  p = Simd::fma(p, t, Simd::set1(0.24285364151000977f));
  p = Simd::fma(p, t, Simd::set1(0.28240957856178284f));
  p = Simd::fma(p, t, Simd::set1(0.28208446502685547f));
  const Floats half = Simd::set1(0.5f);
  const Floats gauss = exp(Simd::mul(Simd::mul(x, x), Simd::set1(-0.5f)));
  const Floats tail = Simd::mul(Simd::mul(Simd::mul(t, p), gauss), half);
  return Simd::mul(x, Simd::if_negative(x, tail, Simd::sub(Simd::set1(1), tail)));
}

template <Floats (*activation)(Floats)>
Floats times_up(Floats gate, Floats up) {
  return Simd::mul(activation(gate), up);
}

// See Activation::kClampedSwiglu.
inline Floats clamped_swiglu(Floats gate, Floats up) {
  const Floats limit = Simd::set1(7), least = Simd::set1(-7), one = Simd::set1(1);
  const Floats x = Simd::min(gate, limit), factor = Simd::max(Simd::min(up, limit), least);
  const Floats e = exp(Simd::mul(x, Simd::set1(-1.702f)));
  return Simd::mul(Simd::div(x, Simd::add(one, e)), Simd::add(factor, one));
}

template <typename Act>
struct RowKernel {
  static void widen(float* out, const void* x, int64_t n) {
    const Act* row = static_cast<const Act*>(x);
    for (int64_t i = 0; i < n; i += kLanes) store_at(out, i, n, load_at(row, i, n));
  }

  static void scale(void* out, const float* x, const float* weight, int64_t n, float factor) {
    const Floats one = Simd::set1(1), factors = Simd::set1(factor);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats w = weight != nullptr ? load_at(weight, i, n) : one;
      store_at(static_cast<Act*>(out), i, n, Simd::mul(Simd::mul(load_at(x, i, n), factors), w));
    }
  }

  static void add(float* residual, const void* x, int64_t n, float factor) {
    const Act* row = static_cast<const Act*>(x);
    const Floats factors = Simd::set1(factor);
    for (int64_t i = 0; i < n; i += kLanes) {
      store_at(residual, i, n, Simd::fma(load_at(row, i, n), factors, load_at(residual, i, n)));
    }
  }

  static void norm_rope(void* out, const void* x, int dim, const float* norm, float eps,
                        const float* cos_sin, int rotary_dim) {
    const Act* from = static_cast<const Act*>(x);
    Act* to = static_cast<Act*>(out);
    const Floats scale =
        Simd::set1(norm != nullptr ? 1 / __builtin_sqrtf(mean_square(from, dim) + eps) : 1);
    const auto load = [&](int64_t i, int64_t end) {
      const Floats v = load_at(from, i, end);
      return norm != nullptr ? Simd::mul(Simd::mul(v, scale), load_at(norm, i, end)) : v;
    };
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; i += kLanes) {
      const Floats a = load(i, half), b = load(half + i, rotary_dim);
      const Floats c = load_at(cos_sin, i, half), s = load_at(cos_sin, half + i, rotary_dim);
      store_at(to, i, half, Simd::sub(Simd::mul(a, c), Simd::mul(b, s)));
      store_at(to, half + i, rotary_dim, Simd::add(Simd::mul(b, c), Simd::mul(a, s)));
    }
    for (int i = rotary_dim; i < dim; i += kLanes) store_at(to, i, dim, load(i, dim));
  }

  static void times_sigmoid(void* x, const void* gate, int64_t n) {
    Act* row = static_cast<Act*>(x);
    const Act* g = static_cast<const Act*>(gate);
    const Floats zero = Simd::set1(0), one = Simd::set1(1);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats e = exp(Simd::sub(zero, load_at(g, i, n)));
      store_at(row, i, n, Simd::div(load_at(row, i, n), Simd::add(one, e)));
    }
  }

  template <Floats (*combine)(Floats gate, Floats up)>
  static void act_and_mul(void* out, const void* gate, const void* up, int64_t n) {
    const Act* g = static_cast<const Act*>(gate);
    const Act* u = static_cast<const Act*>(up);
    for (int64_t i = 0; i < n; i += kLanes) {
      store_at(static_cast<Act*>(out), i, n, combine(load_at(g, i, n), load_at(u, i, n)));
    }
  }

  static RowKernels table() {
    return {widen,
            mean_square<float>,
            scale,
            add,
            norm_rope,
            times_sigmoid,
            {act_and_mul<times_up<silu>>, act_and_mul<times_up<gelu>>,
             act_and_mul<times_up<gelu_tanh>>, act_and_mul<clamped_swiglu>}};
  }
};

}  // namespace
}  // namespace nanovllm
