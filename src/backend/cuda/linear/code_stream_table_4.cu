#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

void launch_stream_table_4(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  launch_stream_kind<CodeKind::kTable4>(stream, p, plan);
}

}  // namespace nanovllm::cuda
