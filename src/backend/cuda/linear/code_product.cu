#include "backend/cuda/linear/code_product.cuh"
#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

void launch_code_stream(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  NANOVLLM_CHECK(plan.row_sets > 0);
  switch (p.shape.kind) {
    case CodeKind::k4:
      return launch_stream_4(stream, p, plan);
    case CodeKind::kTable4:
      return launch_stream_table_4(stream, p, plan);
    case CodeKind::k5:
      return launch_stream_5(stream, p, plan);
    case CodeKind::k6:
      return launch_stream_6(stream, p, plan);
    case CodeKind::kInt8:
      return launch_stream_int8(stream, p, plan);
    case CodeKind::kE4M3:
      return launch_stream_e4m3(stream, p, plan);
  }
}

void launch_code_product(cudaStream_t stream, const CodeProduct& p, const DeviceTraits& device) {
  const CodePlan plan = plan_code_product(p, device);
  NANOVLLM_CHECK(plan.row_sets > 0);
  switch (p.shape.kind) {
    case CodeKind::k4:
      return launch_kind_4(stream, p, plan);
    case CodeKind::kTable4:
      return launch_kind_table_4(stream, p, plan);
    case CodeKind::k5:
      return launch_kind_5(stream, p, plan);
    case CodeKind::k6:
      return launch_kind_6(stream, p, plan);
    case CodeKind::kInt8:
      return launch_kind_int8(stream, p, plan);
    case CodeKind::kE4M3:
      return launch_kind_e4m3(stream, p, plan);
  }
}

}  // namespace nanovllm::cuda
