// Attention with AVX-512.
#if defined(__AVX512F__)
#  include "backend/cpu/attention_kernel.h"

namespace nanovllm {

AttentionKernels attention_kernels_avx512(bool bfloat16) {
  return bfloat16 ? make_attention_kernels<DotExpanded<5, 4>>()
                  : make_attention_kernels<DotFloat<6, 4>>();
}

}  // namespace nanovllm
#endif
