#include "backend/cpu/sampling_simd.h"

namespace nanovllm {

const SamplingKernels kSamplingPortable = {block_max, block_mass, weights, bins, count_at_least};

}  // namespace nanovllm
