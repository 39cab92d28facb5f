// Row kernels with AVX2 and FMA.
#if defined(__AVX2__)
#  include "backend/cpu/row_kernel.h"

namespace nanovllm {

RowKernels row_kernels_avx2(bool bfloat16) { return make_row_kernels(bfloat16); }

}  // namespace nanovllm
#endif
