#include "backend/cuda/linear/code_wgmma.cuh"

namespace nanovllm::cuda {

template void launch_wgmma_kind<CodeKind::k6>(cudaStream_t, const CodeProduct&,
                                              const CodeWgmmaPlan&);

}  // namespace nanovllm::cuda
