// Which backends this build has.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace nanovllm {

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | cuda; auto takes cuda where there is a device
  int num_threads = 0;          // cpu; 0 = as many as affinity and cgroup limits allow
  int device_index = 0;         // cuda: which of the machine's devices
  bool deterministic = false;  // cuda: rows never depend on their batch mates; always so on the cpu
};

// Throws Error(kUnsupported) when the build or machine has no such device.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cpu_backend(int num_threads);

}  // namespace nanovllm
