#include "backend/cuda/linear/code_stream.cuh"

namespace nanovllm::cuda {

template void launch_stream_kind<CodeKind::k4>(cudaStream_t, const CodeProduct&, const StreamPlan&);

}  // namespace nanovllm::cuda
