#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace nanovllm {

std::unique_ptr<Backend> make_cpu_backend(int num_threads) {
  return std::make_unique<CpuBackend>(CpuOptions{.num_threads = num_threads, .max_isa = {}});
}

std::unique_ptr<Backend> make_backend(const std::string& device, int num_threads) {
  if (device == "cpu" || device == "auto") return make_cpu_backend(num_threads);
  if (device == "cuda")
    throw_error(ErrorCode::kUnsupported,
                "device cuda is not available: this build has no CUDA backend; use cpu or auto");
  throw_error(ErrorCode::kInvalidArgument, "device is '{}', but must be auto, cpu or cuda", device);
}

}  // namespace nanovllm
