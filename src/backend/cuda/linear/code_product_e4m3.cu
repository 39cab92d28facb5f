#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

void launch_kind_e4m3(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  launch_kind<CodeKind::kE4M3>(stream, p, plan);
}

}  // namespace nanovllm::cuda
