#include "backend/cpu/layer/row_kernel.h"

namespace nanovllm {

template <Isa isa>
RowKernels row_kernels(bool bfloat16) {
  return bfloat16 ? RowKernel<uint16_t>::table() : RowKernel<float>::table();
}
template RowKernels row_kernels<Isa::NANOVLLM_ISA>(bool);

}  // namespace nanovllm
