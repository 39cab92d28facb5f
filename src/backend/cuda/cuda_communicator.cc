#include "backend/cuda/cuda_communicator.h"

#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/peer_kernels.h"
#include "base/check.h"

namespace nanovllm {

class CudaCommunicatorGroup::Rank final : public Communicator {
 public:
  Rank(CudaCommunicatorGroup& group, int rank, cudaStream_t stream);
  ~Rank() override;
  int rank() const override { return peers_.rank; }
  int world_size() const override { return peers_.world_size; }

  void meet() override { group_.barrier_.arrive_and_wait(); }
  void all_reduce(Tensor x) override;
  void all_gather(Tensor out, Tensor x) override;
  void all_reduce_add_rms_norm(Backend& backend, Tensor out, Tensor residual, Tensor x,
                               const float* weight, float eps, float offset) override;

 private:
  bool sends_lines(const Tensor& x) const {
    return static_cast<int64_t>(x.bytes()) <=
           group_.most_line_bytes_ / std::max(1, world_size() - 1);
  }

  CudaCommunicatorGroup& group_;
  const cudaStream_t stream_;
  cuda::PeerGroup peers_;
  cuda::PeerMemory* memory_ = nullptr;  // this rank's
};

CudaCommunicatorGroup::Rank::Rank(CudaCommunicatorGroup& group, int rank, cudaStream_t stream)
    : group_(group), stream_(stream) {
  Peer& self = group.peers_[rank];
  NANOVLLM_CUDA_CHECK(cudaGetDevice(&self.device));
  NANOVLLM_CUDA_CHECK(cudaMalloc(&memory_, sizeof(cuda::PeerMemory)));
  NANOVLLM_CUDA_CHECK(cudaMemset(memory_, 0, sizeof(cuda::PeerMemory)));
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  self.memory = memory_;
  group.barrier_.arrive_and_wait();
  group.enable_access(rank);
  group.barrier_.arrive_and_wait();  // nobody sends before all can
  peers_.rank = rank;
  peers_.world_size = group.world_size();
  peers_.status = group.status_;
  for (int other = 0; other < group.world_size(); ++other) {
    peers_.memory[other] = group.peers_[other].memory;
  }
}

CudaCommunicatorGroup::Rank::~Rank() {
  cudaDeviceSynchronize();
  try {
    group_.barrier_.arrive_and_wait();  // another rank may still be sending
  } catch (const Error&) {
    // It has failed and sends no more.
  }
  cudaFree(memory_);
}

void CudaCommunicatorGroup::Rank::all_reduce(Tensor x) {
  const auto launch =
      sends_lines(x) ? cuda::launch_all_reduce_lines : cuda::launch_all_reduce_exchange;
  launch(stream_, peers_, x.data, x.dtype, x.num_elements());
}

void CudaCommunicatorGroup::Rank::all_gather(Tensor out, Tensor x) {
  NANOVLLM_CHECK(out.num_elements() == x.num_elements() * world_size());
  cuda::launch_all_gather(stream_, peers_, out.data, x.data, x.rows(),
                          x.row_size() * static_cast<int64_t>(size_of(x.dtype)));
}

void CudaCommunicatorGroup::Rank::all_reduce_add_rms_norm(Backend& backend, Tensor out,
                                                          Tensor residual, Tensor x,
                                                          const float* weight, float eps,
                                                          float offset) {
  const auto hidden = static_cast<int>(x.row_size());
  if (!sends_lines(x) || !cuda::can_all_reduce_add_rms_norm(x.dtype, hidden)) {
    return Communicator::all_reduce_add_rms_norm(backend, out, residual, x, weight, eps, offset);
  }
  NANOVLLM_CHECK(x.dtype == out.dtype);
  cuda::launch_all_reduce_add_rms_norm(stream_, peers_, out.data, x.dtype, residual.f32(), x.data,
                                       weight, static_cast<int>(x.rows()), hidden, eps, offset);
}

CudaCommunicatorGroup::CudaCommunicatorGroup(int world_size, int64_t most_line_bytes)
    : CommunicatorGroup(world_size, /*may_spin=*/true),
      most_line_bytes_(most_line_bytes),
      peers_(world_size) {
  if (world_size > cuda::kMaxRanks) {
    throw_error(ErrorCode::kUnsupported, "{} ranks were asked for, but GPUs work as {} at most",
                world_size, cuda::kMaxRanks);
  }
  NANOVLLM_CUDA_CHECK(cudaHostAlloc(&status_, sizeof(cuda::PeerStatus), cudaHostAllocPortable));
  *status_ = {};
}

CudaCommunicatorGroup::~CudaCommunicatorGroup() { cudaFreeHost(status_); }

std::unique_ptr<Communicator> CudaCommunicatorGroup::join(int rank, Backend& backend) {
  return std::make_unique<Rank>(*this, rank, dynamic_cast<CudaBackend&>(backend).stream());
}

void CudaCommunicatorGroup::enable_access(int rank) {
  const int device = peers_[rank].device;
  for (const Peer& other : peers_) {
    if (other.device == device) continue;
    int reaches = 0;
    NANOVLLM_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, device, other.device));
    if (reaches == 0) {
      throw_error(ErrorCode::kUnsupported,
                  "GPU {} can't reach the memory of GPU {}, which tensor_parallel_size above 1 "
                  "needs; use 1, or GPUs linked by NVLink or one PCIe switch",
                  device, other.device);
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // by an earlier group of this process
    } else {
      cuda::check(status, "cudaDeviceEnablePeerAccess");
    }
  }
}

void CudaCommunicatorGroup::abort() {
  const_cast<volatile cuda::PeerStatus*>(status_)->aborted = 1;
  CommunicatorGroup::abort();
}

void CudaCommunicatorGroup::check() {
  if (const_cast<volatile cuda::PeerStatus*>(status_)->timed_out != 0) {
    throw_error(ErrorCode::kInternal,
                "a GPU has waited {} s for another one of its tensor-parallel group in vain",
                cuda::kPatienceNanoseconds / 1'000'000'000);
  }
  CommunicatorGroup::check();
}

}  // namespace nanovllm
