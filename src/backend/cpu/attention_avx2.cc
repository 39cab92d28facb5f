// Attention with AVX2 and FMA.
#if defined(__AVX2__)
#  include "backend/cpu/attention_kernel.h"

namespace nanovllm {

AttentionKernels attention_kernels_avx2(bool bfloat16) {
  return bfloat16 ? make_attention_kernels<DotExpanded<4, 1>>()
                  : make_attention_kernels<DotFloat<6, 1>>();
}

}  // namespace nanovllm
#endif
