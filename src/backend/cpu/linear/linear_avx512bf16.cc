// Matrix products with VDPBF16PS: two bfloat16 products a lane, added to a float32 accumulator.
#include <immintrin.h>

#include <cstring>

#include "backend/cpu/linear/coded_weights_avx512.h"
#include "backend/cpu/linear/codes_avx512vbmi.h"
#include "backend/cpu/linear/linear_avx512_ops.h"
#include "backend/cpu/linear/linear_coded_loops.h"
#include "backend/cpu/linear/linear_group_loops.h"

namespace nanovllm {
namespace {

struct DotOps : Avx512Ops, CodesAvx512Vbmi {
  using A = __m512bh;
  using B = __m512bh;
  using Panel = CodedPanel;
  static constexpr int kRowBytes = 4;
  static constexpr int kAskingRows = 2;  // measured on a Zen 4
  template <int rows>
  static A load_a(const char* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return (A)_mm512_set1_epi32(pair);
  }
  static B weights(__m512i pairs) { return (B)pairs; }
  static B load_b(const char* p) { return weights(_mm512_loadu_si512(p)); }
  static Vec multiply_add(Vec acc, A a, B b) { return _mm512_dpbf16_ps(acc, a, b); }
};

}  // namespace

void linear_bf16_avx512bf16(const LinearBlock& block) { CodedLoops<DotOps>::run(block); }

void linear_codes_avx512bf16(const LinearBlock& block) { GroupLoops<DotOps>::run(block); }

}  // namespace nanovllm
