#include "backend/cuda/backend/cuda_communicator.h"

#include <algorithm>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/peers/peer_kernels.h"
#include "backend/cuda/peers/peer_plan.h"
#include "base/check.h"
#include "base/resource_limits.h"

namespace nanovllm {

CudaCommunicatorGroup::Rank::Rank(CudaCommunicatorGroup& group, int rank, cudaStream_t stream,
                                  int tail_kernel_blocks)
    : group_(group), queue_{.stream = stream, .barrier = &group.barrier_} {
  Peer& self = group.peers_[rank];
  NANOVLLM_CUDA_CHECK(cudaGetDevice(&self.device));
  self.memory = std::make_unique<cuda::DeviceBuffer>(sizeof(cuda::PeerMemory));
  NANOVLLM_CUDA_CHECK(cudaMemset(self.memory->data(), 0, sizeof(cuda::PeerMemory)));
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  group.barrier_.arrive_and_wait();
  group.enable_access(rank);
  group.barrier_.arrive_and_wait();  // nobody sends before all can
  queue_.group.rank = rank;
  queue_.group.world_size = group.world_size();
  queue_.group.status = group.status_;
  for (int other = 0; other < group.world_size(); ++other) {
    queue_.group.memory[other] = static_cast<cuda::PeerMemory*>(group.peers_[other].memory->data());
  }
  // Kernels on GPUs of different sizes would not take the same layers.
  all_have_tail_kernels_ = agree(tail_kernel_blocks) && tail_kernel_blocks > 0;
}

bool CudaCommunicatorGroup::Rank::agree(int64_t value) const {
  const int rank = queue_.group.rank;
  return group_.min_over_ranks(rank, value) == -group_.min_over_ranks(rank, -value);
}

void CudaCommunicatorGroup::Rank::all_reduce(Tensor x) const {
  const auto path = cuda::plan_sum(static_cast<int64_t>(x.bytes()), most_line_bytes());
  const auto launch = path == cuda::SumPath::kLines ? cuda::launch_all_reduce_lines
                                                    : cuda::launch_all_reduce_exchange;
  launch(queue_, x.data, x.dtype, x.num_elements());
}

void CudaCommunicatorGroup::Rank::all_gather(Tensor out, Tensor x) const {
  NANOVLLM_CHECK(out.num_elements() == x.num_elements() * group_.world_size());
  cuda::launch_all_gather(queue_, out.data, x.data, x.rows(),
                          x.row_size() * static_cast<int64_t>(size_of(x.dtype)));
}

void CudaCommunicatorGroup::Rank::all_reduce_add_rms_norm(Tensor out, Tensor residual, Tensor x,
                                                          const float* weight, float eps) const {
  NANOVLLM_CHECK(x.dtype == out.dtype);
  cuda::launch_all_reduce_add_rms_norm(queue_, out.data, x.dtype, residual.f32(), x.data, weight,
                                       static_cast<int>(x.rows()), static_cast<int>(x.row_size()),
                                       eps);
}

// Of every device of the process, and not of the group's alone: to free memory of one, as another
// group may at any time, can take until the others have come to an end.
std::vector<cuda::DeviceContext::Hold> CudaCommunicatorGroup::hold_devices(
    int world_size, const std::string& engine) {
  std::vector<cuda::DeviceContext::Hold> holds;
  for (int gpu = 0; world_size > 1 && gpu < CudaBackend::device_count(); ++gpu) {
    cuda::DeviceContext& device = cuda::DeviceContext::of(gpu);
    auto [hold, holder] = device.take(cuda::Exclusive::kMeetingDevices, engine);
    if (!hold) {
      throw_error(ErrorCode::kUnsupported,
                  "this process has an engine with several GPUs already ({}), and the GPUs of two "
                  "could wait for each other for ever; end that one first, or run this one in a "
                  "process of its own",
                  holder);
    }
    holds.push_back(*std::move(hold));
  }
  return holds;
}

// A GPU that no rank has would lose memory to this process's context.
cuda::PinnedBuffer CudaCommunicatorGroup::make_status(int gpu) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(gpu));
  return cuda::PinnedBuffer(sizeof(cuda::PeerStatus));
}

CudaCommunicatorGroup::CudaCommunicatorGroup(int world_size, int64_t most_line_bytes, int first_gpu,
                                             const std::string& engine)
    : CommunicatorGroup(world_size, world_size <= usable_cpus()),
      holds_(hold_devices(world_size, engine)),
      most_line_bytes_(most_line_bytes),
      status_memory_(make_status(first_gpu)),
      peers_(world_size) {
  if (world_size > cuda::kMaxRanks) {
    throw_error(ErrorCode::kUnsupported, "{} ranks were asked for, but GPUs work as {} at most",
                world_size, cuda::kMaxRanks);
  }
}

void CudaCommunicatorGroup::join(int rank, Backend& backend) {
  dynamic_cast<CudaBackend&>(backend).join(*this, rank);
}

void CudaBackend::join(CudaCommunicatorGroup& group, int rank) {
  const int blocks = tail_kernel_ != nullptr ? traits_.num_multiprocessors() : 0;
  rank_ = std::make_unique<CudaCommunicatorGroup::Rank>(group, rank, stream_, blocks);
}

int CudaBackend::rank() const { return rank_ ? rank_->queue().group.rank : 0; }
int CudaBackend::world_size() const { return rank_ ? rank_->queue().group.world_size : 1; }

bool CudaBackend::ranks_agree(int64_t value) const { return !rank_ || rank_->agree(value); }

void CudaBackend::all_reduce(Tensor x) {
  if (rank_) rank_->all_reduce(x);
}

void CudaBackend::all_gather(Tensor out, Tensor x) {
  if (rank_) rank_->all_gather(out, x);
}

void CudaBackend::all_reduce_add_rms_norm(Tensor out, Tensor residual, Tensor x,
                                          const float* weight, float eps) {
  if (rank_ && cuda::plan_sum_and_norm(x.dtype, x.rows(), static_cast<int>(x.row_size()),
                                       rank_->most_line_bytes(),
                                       deterministic_) == cuda::SumPath::kLinesAndNorm) {
    return rank_->all_reduce_add_rms_norm(out, residual, x, weight, eps);
  }
  Backend::all_reduce_add_rms_norm(out, residual, x, weight, eps);
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
  status_->aborted = 1;
  CommunicatorGroup::abort();
}

void CudaCommunicatorGroup::check() {
  if (status_->timed_out != 0) {
    throw_error(ErrorCode::kInternal,
                "a GPU has waited {} s for another one of its tensor-parallel group in vain",
                cuda::kPatienceNanoseconds / 1'000'000'000);
  }
  CommunicatorGroup::check();
}

}  // namespace nanovllm
