// The ranks of a tensor-parallel group as GPUs that write into each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <vector>

#include "ops/communicator.h"

namespace nanovllm {

namespace cuda {
struct PeerMemory;
struct PeerStatus;
}  // namespace cuda

class CudaCommunicatorGroup final : public CommunicatorGroup {
 public:
  // While no more bytes than this leave a GPU, sending everything to everybody is faster than
  // adding up shares: it is half the way (bench/all_reduce_bench.cc, on H200s linked by NVLink).
  static constexpr int64_t kMostLineBytes = int64_t{1} << 19;

  // Throws Error(kUnsupported) for more ranks than an exchange can have, and while the process has
  // another group of several ranks: a rank's kernels may take a whole GPU while they wait for other
  // ranks', whose GPUs another group's kernels could have taken likewise.
  explicit CudaCommunicatorGroup(int world_size, int64_t most_line_bytes = kMostLineBytes);
  ~CudaCommunicatorGroup() override;
  // `backend` is a CudaBackend. Throws Error(kUnsupported) when its GPU and another rank's can't
  // reach each other's memory. Several ranks may share a GPU, as tests do.
  std::unique_ptr<Communicator> join(int rank, Backend& backend) override;
  void abort() override;
  void check() override;

 private:
  class Rank;
  struct Peer {
    int device = 0;
    cuda::PeerMemory* memory = nullptr;
  };
  class OnlyOne {
   public:
    explicit OnlyOne(int world_size);
    ~OnlyOne();
    OnlyOne(const OnlyOne&) = delete;
    OnlyOne& operator=(const OnlyOne&) = delete;

   private:
    static std::atomic<bool>& exists();
    const bool counts_;
  };
  void enable_access(int rank);

  const OnlyOne only_one_;
  const int64_t most_line_bytes_;
  std::vector<Peer> peers_;             // [world_size]
  cuda::PeerStatus* status_ = nullptr;  // pinned
};

}  // namespace nanovllm
