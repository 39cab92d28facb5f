#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

void launch_kind_int8(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  launch_kind<CodeKind::kInt8>(stream, p, plan);
}

}  // namespace nanovllm::cuda
