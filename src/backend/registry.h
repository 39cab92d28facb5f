// Which backends this build has.
#pragma once

#include <memory>
#include <string>

#include "ops/backend.h"
#include "ops/communicator.h"

namespace nanovllm {

struct BackendOptions {
  std::string device = "auto";  // auto | cpu | cuda; auto takes cuda where there is a device
  int num_threads = 0;          // cpu; 0 = as many as affinity and cgroup limits allow
  int num_ranks = 1;            // tensor-parallel ranks; on the cpu they share num_threads
  int device_index = 0;  // cuda: which of the machine's devices; the rank where there are more
  bool deterministic = false;  // cuda: rows never depend on their batch mates; always so on the cpu
};

// A rank's share of `num_threads` host threads (0 = as many as affinity and cgroup limits allow);
// at least one.
int threads_of_rank(int num_threads, int rank, int num_ranks);

// Throws Error(kUnsupported) when the build or machine has no such device.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cpu_backend(int num_threads);

// The group of `world_size` ranks on such a device. Throws Error(kUnsupported) when the machine has
// fewer of them.
std::unique_ptr<CommunicatorGroup> make_communicator_group(const std::string& device,
                                                           int world_size);

}  // namespace nanovllm
