// Row kernels with AVX-512 and its conversions to bfloat16.
#if defined(__AVX512BF16__)
#  include "backend/cpu/row_kernel.h"

namespace nanovllm {

RowKernels row_kernels_avx512bf16(bool bfloat16) { return make_row_kernels(bfloat16); }

}  // namespace nanovllm
#endif
