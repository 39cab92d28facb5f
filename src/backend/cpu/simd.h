// Sixteen float lanes, the same on every instruction set: kernels are written once over `Simd` and
// compiled once for each set (cmake/isa.cmake).
//
// Everything here and in the *_kernel.h headers has internal linkage, and none of it calls an
// inline function of another header: else the linker might keep a copy of a shared function that
// was compiled for instructions this machine lacks.
//
//   F                        sixteen floats, lane 0 first in memory
//   load, store              float or bfloat16 (as uint16_t) memory of any alignment; bfloat16 is
//                            rounded to nearest, ties to even
//   load_n, store_n          the first n lanes only, 0 <= n <= 16; the others load as 0
//   min, max                 b where a or b is NaN
//   fma(a, b, c)             a * b + c, rounded once where the hardware can
//   round                    to the nearest whole number, ties to even
//   times_power_of_2(x, n)   x * 2^n for a whole n; 0 far below the smallest float
//   if_negative(x, a, b)     a where x < 0, else b
//   keep_lanes(x, y, b, e)   x in lanes b .. e-1, else y; 0 <= b, e <= 16
//   reduce_add, reduce_max   over the lanes, in one tree: i with i+8, with i+4, i+2, i+1
//   load_pairs               32 bfloat16: the even ones and the odd ones
#pragma once

#if defined(__AVX512F__)
#  include "backend/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#  include "backend/cpu/simd_avx2.h"
#else
#  include "backend/cpu/simd_portable.h"
#endif

namespace nanovllm {
namespace {

using Floats = Simd::F;

constexpr int kLanes = 16;
constexpr float kLog2E = 1.44269502f;        // log2(e), rounded to float
constexpr float kLog2ELow = 1.92596303e-8f;  // log2(e) - kLog2E

// 2^(whole + fraction) for a whole number and a fraction of about -0.5 .. 0.5. The polynomial is
// the minimax one of degree 6, relative error 2e-9; exact at fraction 0.
inline Floats exp2_parts(Floats whole, Floats fraction) {
  Floats p = Simd::set1(1.534581242594868e-4f);
  p = Simd::fma(p, fraction, Simd::set1(1.3399930903688073e-3f));
  p = Simd::fma(p, fraction, Simd::set1(9.618489071726799e-3f));
  p = Simd::fma(p, fraction, Simd::set1(5.550328642129898e-2f));
  p = Simd::fma(p, fraction, Simd::set1(0.24022646248340607f));
  p = Simd::fma(p, fraction, Simd::set1(0.6931471824645996f));
  p = Simd::fma(p, fraction, Simd::set1(1.0f));
  return Simd::times_power_of_2(p, whole);
}

// 2^x within 1.5 ulp for x >= -126, within the smallest normal float below that; 1 at 0 and 0 far
// below exactly. x is finite.
inline Floats exp2(Floats x) {
  const Floats whole = Simd::round(x);
  return exp2_parts(whole, Simd::sub(x, whole));
}

// e^x within 2 ulp where that is a normal float and x <= 88; infinite from x = 89 on, 0 below -104.
inline Floats exp(Floats x) {
  x = Simd::max(Simd::min(x, Simd::set1(128)), Simd::set1(-128));
  const Floats scaled = Simd::mul(x, Simd::set1(kLog2E));
  // What the product and the constant were rounded by.
  const Floats low = Simd::fma(x, Simd::set1(kLog2ELow),
                               Simd::fma(x, Simd::set1(kLog2E), Simd::sub(Simd::set1(0), scaled)));
  const Floats whole = Simd::round(scaled);
  return exp2_parts(whole, Simd::add(Simd::sub(scaled, whole), low));
}

}  // namespace
}  // namespace nanovllm
