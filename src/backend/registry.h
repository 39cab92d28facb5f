// Which backends this build has.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"

namespace nanovllm {

// num_threads 0 = as many as affinity and cgroup limits allow.
std::unique_ptr<Backend> make_cpu_backend(int num_threads);

// "auto" takes cuda where there is a device, else cpu. Throws Error(kUnsupported) when the build or
// machine has no such device.
std::unique_ptr<Backend> make_backend(const std::string& device, int num_threads);

}  // namespace nanovllm
