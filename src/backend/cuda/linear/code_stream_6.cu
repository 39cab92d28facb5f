#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

void launch_stream_6(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  launch_stream_kind<CodeKind::k6>(stream, p, plan);
}

}  // namespace nanovllm::cuda
