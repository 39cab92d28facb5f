// Row kernels with AVX-512.
#if defined(__AVX512F__)
#  include "backend/cpu/row_kernel.h"

namespace nanovllm {

RowKernels row_kernels_avx512(bool bfloat16) { return make_row_kernels(bfloat16); }

}  // namespace nanovllm
#endif
