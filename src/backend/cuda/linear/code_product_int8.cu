#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

template void launch_product_kind<CodeKind::kInt8>(cudaStream_t, const CodeProduct&,
                                                   const CodePlan&);

}  // namespace nanovllm::cuda
