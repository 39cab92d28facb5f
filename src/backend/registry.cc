#include "backend/registry.h"

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/peers/cpu_communicator.h"
#include "backend/cpu/resource_limits.h"
#include "base/check.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/cuda_backend.h"
#  include "backend/cuda/peers/cuda_communicator.h"
#endif

namespace nanovllm {

namespace {

// Which kind of device a name stands for. Throws where this build has none.
bool is_cuda(const std::string& device) {
#ifdef NANOVLLM_WITH_CUDA
  if (device == "cuda" || (device == "auto" && CudaBackend::device_count() > 0)) return true;
#endif
  if (device == "cpu" || device == "auto") return false;
  if (device == "cuda") {
    throw_error(ErrorCode::kUnsupported,
                "device cuda is not available: this build has no CUDA backend; use cpu or auto");
  }
  throw_error(ErrorCode::kInvalidArgument, "device is '{}', but must be auto, cpu or cuda", device);
}

}  // namespace

int threads_of_rank(int num_threads, int rank, int num_ranks) {
  const int total = num_threads == 0 ? usable_cpus() : num_threads;
  return std::max(1, total * (rank + 1) / num_ranks - total * rank / num_ranks);
}

std::unique_ptr<Backend> make_cpu_backend(int num_threads, Progress* progress) {
  return std::make_unique<CpuBackend>(
      CpuOptions{.num_threads = num_threads, .max_isa = {}, .progress = progress});
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  [[maybe_unused]] const bool cuda = is_cuda(options.device);
#ifdef NANOVLLM_WITH_CUDA
  if (cuda) {
    return std::make_unique<CudaBackend>(CudaOptions{.device = options.device_index,
                                                     .deterministic = options.deterministic,
                                                     .progress = options.progress});
  }
#endif
  // A single rank's backend refuses numbers of threads that can't be.
  return make_cpu_backend(
      options.num_ranks == 1
          ? options.num_threads
          : threads_of_rank(options.num_threads, options.device_index, options.num_ranks),
      options.progress);
}

std::unique_ptr<CommunicatorGroup> make_communicator_group(const std::string& device,
                                                           int world_size) {
  [[maybe_unused]] const bool cuda = is_cuda(device);
#ifdef NANOVLLM_WITH_CUDA
  if (cuda) {
    const int num_devices = CudaBackend::device_count();
    if (world_size > num_devices) {
      throw_error(ErrorCode::kUnsupported,
                  "tensor_parallel_size is {}, but this machine has {} GPU{}; use at most {}, or "
                  "device cpu",
                  world_size, num_devices, num_devices == 1 ? "" : "s", std::max(1, num_devices));
    }
    return std::make_unique<CudaCommunicatorGroup>(world_size);
  }
#endif
  return std::make_unique<CpuCommunicatorGroup>(world_size);
}

}  // namespace nanovllm
