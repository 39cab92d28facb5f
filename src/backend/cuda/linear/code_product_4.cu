#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

void launch_kind_4(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  launch_kind<CodeKind::k4>(stream, p, plan);
}

}  // namespace nanovllm::cuda
