#include "backend/cuda/linear/code_kinds.h"

namespace nanovllm::cuda {

void launch_code_wgmma(cudaStream_t stream, const CodeProduct& p, const CodeWgmmaPlan& plan) {
  NANOVLLM_CHECK(plan.rows > 0);
  with_kind(p.shape.kind, [&]<CodeKind kKind>() { launch_wgmma_kind<kKind>(stream, p, plan); });
}

void launch_code_stream(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  NANOVLLM_CHECK(plan.row_sets > 0);
  with_kind(p.shape.kind, [&]<CodeKind kKind>() { launch_stream_kind<kKind>(stream, p, plan); });
}

void launch_code_product(cudaStream_t stream, const CodeProduct& p, const DeviceTraits& device) {
  const CodePlan plan = plan_code_product(p, device);
  NANOVLLM_CHECK(plan.row_sets > 0);
  with_kind(p.shape.kind, [&]<CodeKind kKind>() { launch_product_kind<kKind>(stream, p, plan); });
}

}  // namespace nanovllm::cuda
