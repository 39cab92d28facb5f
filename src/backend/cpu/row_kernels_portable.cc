// Row kernels for any processor.
#include "backend/cpu/row_kernel.h"

namespace nanovllm {

RowKernels row_kernels_portable(bool bfloat16) { return make_row_kernels(bfloat16); }

}  // namespace nanovllm
