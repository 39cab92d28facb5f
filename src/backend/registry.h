// Which backends this build has.
#pragma once

#include <memory>
#include <string>

#include "base/progress.h"
#include "ops/backend.h"
#include "ops/communicator.h"

namespace nanovllm {

struct BackendOptions {
  // "auto", "cpu" or "cuda"; auto takes a GPU if there is one.
  std::string device = "auto";
  // CPU; 0 = as many as affinity and cgroup limits allow.
  int num_threads = 0;
  // Tensor-parallel ranks; on the CPU they divide num_threads.
  int num_ranks = 1;
  // CUDA: which of the machine's devices; with several ranks, the rank.
  int device_index = 0;
  // CUDA: a row's result never depends on the other rows of a step. On the CPU it never does.
  bool deterministic = false;
  // Advances while weights are loaded and, on the CPU, as the ops are computed; null = nobody
  // watches. It must live as long as the backend.
  Progress* progress = nullptr;
};

// A rank's share of `num_threads` host threads (0 = as many as affinity and cgroup limits allow);
// at least one.
int threads_of_rank(int num_threads, int rank, int num_ranks);

// Throws Error(kUnsupported) if the build or the machine has no such device.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);
// Of one rank.
std::unique_ptr<Backend> make_cpu_backend(int num_threads, Progress* progress = nullptr);

// The group of `world_size` ranks on a device ("auto", "cpu" or "cuda"). Throws Error(kUnsupported)
// if the machine has fewer GPUs than ranks.
std::unique_ptr<CommunicatorGroup> make_communicator_group(const std::string& device,
                                                           int world_size);

}  // namespace nanovllm
