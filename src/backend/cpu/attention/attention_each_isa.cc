// The products of attention that suit each instruction set's registers.
#include "backend/cpu/attention/attention_kernel.h"

namespace nanovllm {
namespace {

#if defined(__AVX512BF16__)
// Weights are rounded to bfloat16, as in transformers' bfloat16 attention; their sum is not.
struct DotBFloat16 {
  using Operand = uint16_t;
  using Cache = uint16_t;
  // 24 accumulators, 4 vectors of keys or values and a query: 29 of 32 registers.
  static constexpr int kDepth = 2, kRows = 6, kCols = 4;
  // With few rows memory is the bound, and reading few streams at once is what counts: two cache
  // tiles of keys, whole rows of values in one pass.
  static constexpr int kFewRows = 3, kFewRowsKeyCols = 2, kFewRowsValueCols = 8;
  using Vector = __m512bh;
  using Scalar = __m512bh;
  static Vector load(const char* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static Scalar broadcast(const uint16_t* p) {
    return (__m512bh)_mm512_broadcastd_epi32(_mm_loadu_si32(p));
  }
  static Floats step(Floats acc, Scalar a, Vector b) { return _mm512_dpbf16_ps(acc, a, b); }
};
using DotFloat32 = DotFloat<6, 4>;
#elif defined(__AVX512F__)
using DotBFloat16 = DotExpanded<5, 4>;
using DotFloat32 = DotFloat<6, 4>;
#elif defined(__AVX2__)
using DotBFloat16 = DotExpanded<4, 1>;
using DotFloat32 = DotFloat<6, 1>;
#else
using DotBFloat16 = DotExpanded<1, 1>;
using DotFloat32 = DotFloat<2, 1>;
#endif

}  // namespace

template <Isa isa>
AttentionKernels attention_kernels(bool bfloat16) {
  return bfloat16 ? make_attention_kernels<DotBFloat16>() : make_attention_kernels<DotFloat32>();
}
template AttentionKernels attention_kernels<Isa::NANOVLLM_ISA>(bool);

}  // namespace nanovllm
