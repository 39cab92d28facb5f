// Which backends this build has.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/progress.h"
#include "ops/backend.h"
#include "ops/communicator.h"

namespace nanovllm {

struct BackendOptions {
  // "auto", "cpu" or "cuda"; auto takes a GPU if there is one.
  std::string device = "auto";
  // CUDA: the GPU of rank 0; rank r has the one r behind it.
  int first_gpu = 0;
  // CPU; 0 = as many as affinity and cgroup limits allow.
  int num_threads = 0;
  // Tensor-parallel ranks; on the CPU they divide num_threads.
  int num_ranks = 1;
  int rank = 0;
  // CUDA: a row's result never depends on the other rows of a step. On the CPU it never does.
  bool deterministic = false;
  // Advances while weights are loaded and, on the CPU, as the ops are computed; null = nobody
  // watches. It must live as long as the backend.
  Progress* progress = nullptr;
  // Whose backend it is, for people who are told what another engine of the process holds. Its
  // ranks have one name.
  std::string engine = "an engine of this process";
};

// A rank's share of `num_threads` host threads (0 = as many as affinity and cgroup limits allow);
// at least one.
int threads_of_rank(int num_threads, int rank, int num_ranks);

// Whether the ranks compute on GPUs of a machine that has so many; none = the build has no CUDA
// backend. Throws Error(kUnsupported) where there are too few, and Error(kInvalidArgument) where
// the device's name is unknown.
bool is_on_gpus(const BackendOptions& options, std::optional<int> num_gpus);
// The same on this machine.
bool is_on_gpus(const BackendOptions& options);

// Throws Error(kUnsupported) if the build or the machine has no such device.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);
// Of one rank.
std::unique_ptr<Backend> make_cpu_backend(int num_threads, Progress* progress = nullptr);

// The group of `world_size` ranks on a device ("auto", "cpu" or "cuda"). Throws Error(kUnsupported)
// if the machine has fewer GPUs than ranks, from `first_gpu` on. `engine` as in BackendOptions.
std::unique_ptr<CommunicatorGroup> make_communicator_group(
    const std::string& device, int world_size, int first_gpu = 0,
    const std::string& engine = BackendOptions().engine);

}  // namespace nanovllm
