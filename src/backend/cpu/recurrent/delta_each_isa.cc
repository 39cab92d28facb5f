#include "backend/cpu/recurrent/delta_kernel.h"

namespace nanovllm {

template <Isa isa>
DeltaKernels delta_kernels(bool bfloat16) {
  return bfloat16 ? DeltaKernel<uint16_t>::table() : DeltaKernel<float>::table();
}
template DeltaKernels delta_kernels<Isa::NANOVLLM_ISA>(bool);

}  // namespace nanovllm
