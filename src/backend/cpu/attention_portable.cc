// Attention for any processor.
#include "backend/cpu/attention_kernel.h"

namespace nanovllm {

AttentionKernels attention_kernels_portable(bool bfloat16) {
  return bfloat16 ? make_attention_kernels<DotExpanded<1, 1>>()
                  : make_attention_kernels<DotFloat<2, 1>>();
}

}  // namespace nanovllm
