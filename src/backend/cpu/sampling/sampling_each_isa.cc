#include "backend/cpu/sampling/sampling_simd.h"

namespace nanovllm {

template <Isa isa>
SamplingKernels sampling_kernels() {
  return {block_max, block_mass, weights, bins, count_at_least, mask};
}
template SamplingKernels sampling_kernels<Isa::NANOVLLM_ISA>();

}  // namespace nanovllm
