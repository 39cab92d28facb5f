// CUDA graphs: what a piece of code enqueues, recorded from the stream.
#include <memory>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_check.h"

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
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
  // A graph is launched for other batches than the one it is recorded with: it makes its own plan.
  forget_plans();
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    forget_plans();
    cudaStreamEndCapture(stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  forget_plans();
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
  return std::make_unique<CudaGraph>(graph, stream());
}

void CudaBackend::launch(const Graph& graph) {
  forget_plans();
  NANOVLLM_CUDA_CHECK(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable(), stream()));
}

}  // namespace nanovllm
