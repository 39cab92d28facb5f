#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

void launch_kind_6(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  launch_kind<CodeKind::k6>(stream, p, plan);
}

}  // namespace nanovllm::cuda
