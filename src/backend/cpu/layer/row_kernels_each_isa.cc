#include "backend/cpu/layer/row_kernel.h"

namespace nanovllm {

template <Isa isa>
RowKernels row_kernels(bool bfloat16) {
  return make_row_kernels(bfloat16);
}
template RowKernels row_kernels<Isa::NANOVLLM_ISA>(bool);

}  // namespace nanovllm
