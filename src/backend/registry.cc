#include "backend/registry.h"

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/peers/cpu_communicator.h"
#include "base/check.h"
#include "base/message.h"
#include "base/resource_limits.h"
#include "base/signals.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#  include "backend/cuda/backend/cuda_communicator.h"
#endif

namespace nanovllm {

namespace {

std::optional<int> count_gpus() {
#ifdef NANOVLLM_WITH_CUDA
  return CudaBackend::device_count();
#else
  return std::nullopt;
#endif
}

}  // namespace

bool is_on_gpus(const BackendOptions& options, std::optional<int> num_gpus) {
  if (options.device == "cpu" || (options.device == "auto" && num_gpus.value_or(0) == 0)) {
    return false;
  }
  if (options.device != "auto" && options.device != "cuda") {
    throw_error(ErrorCode::kInvalidArgument, "device is '{}', but must be auto, cpu or cuda",
                options.device);
  }
  if (!num_gpus) {
    throw_error(ErrorCode::kUnsupported,
                "device cuda is not available: this build has no CUDA backend; use cpu or auto");
  }
  const int num_left = std::max(0, *num_gpus - options.first_gpu);
  if (options.num_ranks <= num_left) return true;
  const bool is_shifted = options.first_gpu > 0;  // by the user, or for the workers before this one
  const char* way_out =
      is_shifted ? "a lower first_gpu or data_parallel_size, or device cpu" : "device cpu";
  const std::string there = counted(*num_gpus, "GPU");
  if (num_left == 0) {
    throw_error(ErrorCode::kUnsupported,
                "there is no CUDA device {}: this machine has {}, counted from 0; use {}",
                options.first_gpu, there, way_out);
  }
  throw_error(
      ErrorCode::kUnsupported,
      "tensor_parallel_size is {}, but this machine has {}{}; use at most {}, or {}",
      options.num_ranks, there,
      is_shifted ? fmt::format(", {} of them from number {} on", num_left, options.first_gpu) : "",
      num_left, way_out);
}

bool is_on_gpus(const BackendOptions& options) {
  const SignalsBlocked in_driver;  // CUDA's starts threads, even to count the GPUs
  return is_on_gpus(options, count_gpus());
}

int threads_of_rank(int num_threads, int rank, int num_ranks) {
  const int total = num_threads == 0 ? usable_cpus() : num_threads;
  return std::max(1, total * (rank + 1) / num_ranks - total * rank / num_ranks);
}

std::unique_ptr<Backend> make_cpu_backend(int num_threads, Progress* progress) {
  return std::make_unique<CpuBackend>(
      CpuOptions{.num_threads = num_threads, .max_isa = {}, .progress = progress});
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  const SignalsBlocked in_driver;
  [[maybe_unused]] const bool on_gpus = is_on_gpus(options);
#ifdef NANOVLLM_WITH_CUDA
  if (on_gpus) {
    return std::make_unique<CudaBackend>(CudaOptions{.device = options.first_gpu + options.rank,
                                                     .deterministic = options.deterministic,
                                                     .progress = options.progress,
                                                     .engine = options.engine});
  }
#endif
  // A single rank's backend refuses numbers of threads that can't be.
  return make_cpu_backend(options.num_ranks == 1 ? options.num_threads
                                                 : threads_of_rank(options.num_threads,
                                                                   options.rank, options.num_ranks),
                          options.progress);
}

std::unique_ptr<CommunicatorGroup> make_communicator_group(
    const std::string& device, int world_size, int first_gpu,
    [[maybe_unused]] const std::string& engine) {
  const SignalsBlocked in_driver;
  [[maybe_unused]] const bool on_gpus =
      is_on_gpus({.device = device, .first_gpu = first_gpu, .num_ranks = world_size});
#ifdef NANOVLLM_WITH_CUDA
  if (on_gpus) {
    return std::make_unique<CudaCommunicatorGroup>(
        world_size, CudaCommunicatorGroup::kMostLineBytes, first_gpu, engine);
  }
#endif
  return std::make_unique<CpuCommunicatorGroup>(world_size);
}

}  // namespace nanovllm
