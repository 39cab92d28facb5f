// The ranks of a tensor-parallel group as GPUs that write into each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device_context.h"
#include "backend/cuda/device/memory.h"
#include "backend/cuda/peers/peer_queue.h"
#include "ops/communicator.h"

namespace nanovllm {

class CudaCommunicatorGroup final : public CommunicatorGroup {
 public:
  class Rank;
  // While no more bytes than this leave a GPU, sending everything to everybody is faster than
  // adding up shares: it is half the way (bench/all_reduce_bench.cc, on H200s linked by NVLink).
  static constexpr int64_t kMostLineBytes = int64_t{1} << 19;

  // Throws Error(kUnsupported) for more ranks than an exchange can have, and while the process has
  // another group of several ranks: a rank's kernels may take a whole GPU while they wait for other
  // ranks', whose GPUs another group's kernels could have taken likewise. `first_gpu` is rank 0's,
  // and then the current device of this thread. `engine` is whose ranks they are, for people.
  explicit CudaCommunicatorGroup(int world_size, int64_t most_line_bytes = kMostLineBytes,
                                 int first_gpu = 0,
                                 const std::string& engine = "an engine of this process");
  // `backend` is a CudaBackend. Throws Error(kUnsupported) when its GPU and another rank's can't
  // reach each other's memory. Several ranks may share a GPU, as tests do.
  void join(int rank, Backend& backend) override;
  void abort() override;
  void check() override;

 private:
  struct Peer {
    int device = 0;
    std::unique_ptr<Buffer> memory;  // cuda::PeerMemory
  };
  static std::vector<cuda::DeviceContext::Hold> hold_devices(int world_size,
                                                             const std::string& engine);
  static cuda::PinnedBuffer make_status(int gpu);
  void enable_access(int rank);

  const std::vector<cuda::DeviceContext::Hold> holds_;
  const int64_t most_line_bytes_;
  const cuda::PinnedBuffer status_memory_;
  volatile cuda::PeerStatus* const status_ = static_cast<cuda::PeerStatus*>(status_memory_.data());
  // [world_size]. The ranks are gone before, and what they sent has arrived: also where one failed
  // and did not wait.
  std::vector<Peer> peers_;
};

// What a backend that has joined a group does with the others.
class CudaCommunicatorGroup::Rank {
 public:
  // Of the current device. tail_kernel_blocks: of its kernel for the tails of layers, 0 = none.
  Rank(CudaCommunicatorGroup& group, int rank, cudaStream_t stream, int tail_kernel_blocks);
  ~Rank() { cudaDeviceSynchronize(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const cuda::PeerQueue& queue() const { return queue_; }
  // Whether all ranks bring this number.
  bool agree(int64_t value) const;
  // Whether all ranks have such a kernel, in as many blocks.
  bool all_have_tail_kernels() const { return all_have_tail_kernels_; }
  // Sums of at most so many bytes go to everybody at once.
  int64_t most_line_bytes() const {
    return group_.most_line_bytes_ / std::max(1, group_.world_size() - 1);
  }

  void all_reduce(Tensor x) const;
  void all_gather(Tensor out, Tensor x) const;
  // As plan_sum() says.
  void all_reduce_add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight,
                               float eps) const;

 private:
  CudaCommunicatorGroup& group_;
  cuda::PeerQueue queue_;
  bool all_have_tail_kernels_ = false;
};

}  // namespace nanovllm
