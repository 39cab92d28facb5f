// CUDA graphs: what a piece of code enqueues, recorded from the stream.
#include <memory>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/device/cuda_check.h"

namespace nanovllm {
namespace {

class CudaGraph final : public Graph {
 public:
  // Takes over `graph`.
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(status, "cudaGraphInstantiate");
    NANOVLLM_CUDA_CHECK(cudaGraphUpload(executable_, stream));
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<Graph> CudaBackend::capture(const std::function<void()>& ops) {
  // Thread-local: other ranks' threads do as they like meanwhile.
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  // A graph is launched for other batches than the one it is recorded with: it makes its own plan.
  decode_plans_->forget();
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    decode_plans_->forget();
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  decode_plans_->forget();
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  return std::make_unique<CudaGraph>(graph, stream_);
}

void CudaBackend::launch(const Graph& graph) {
  if (rank_ == nullptr) return launch_alone(graph);
  rank_->queue().together([&] { launch_alone(graph); });
}

void CudaBackend::launch_alone(const Graph& graph) {
  decode_plans_->forget();
  NANOVLLM_CUDA_CHECK(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable(), stream_));
}

}  // namespace nanovllm
