#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

void launch_stream_int8(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  launch_stream_kind<CodeKind::kInt8>(stream, p, plan);
}

}  // namespace nanovllm::cuda
