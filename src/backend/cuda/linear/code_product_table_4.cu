#include "backend/cuda/linear/code_product.cuh"

namespace nanovllm::cuda {

void launch_kind_table_4(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  launch_kind<CodeKind::kTable4>(stream, p, plan);
}

}  // namespace nanovllm::cuda
