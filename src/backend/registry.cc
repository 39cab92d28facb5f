#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/cuda_backend.h"
#endif

namespace nanovllm {

std::unique_ptr<Backend> make_cpu_backend(int num_threads) {
  return std::make_unique<CpuBackend>(CpuOptions{.num_threads = num_threads, .max_isa = {}});
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  const std::string& device = options.device;
#ifdef NANOVLLM_WITH_CUDA
  const bool use_cuda = device == "cuda" || (device == "auto" && CudaBackend::device_count() > 0);
  if (use_cuda) {
    return std::make_unique<CudaBackend>(
        CudaOptions{.device = options.device_index, .deterministic = options.deterministic});
  }
#endif
  if (device == "cpu" || device == "auto") return make_cpu_backend(options.num_threads);
  if (device == "cuda")
    throw_error(ErrorCode::kUnsupported,
                "device cuda is not available: this build has no CUDA backend; use cpu or auto");
  throw_error(ErrorCode::kInvalidArgument, "device is '{}', but must be auto, cpu or cuda", device);
}

}  // namespace nanovllm
