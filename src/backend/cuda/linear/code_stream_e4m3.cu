#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

void launch_stream_e4m3(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  launch_stream_kind<CodeKind::kE4M3>(stream, p, plan);
}

}  // namespace nanovllm::cuda
