#if defined(__x86_64__)
#  include "backend/cpu/sampling_simd.h"

namespace nanovllm {

const SamplingKernels kSamplingAvx512 = {block_max, block_mass, weights, bins, count_at_least};

}  // namespace nanovllm
#endif
