// Every exchange has two barriers: after the first, all tensors are there to be read; after the
// second, nobody reads them any more. In an all_reduce each rank adds up its share of the elements
// and writes the sum to all ranks, so that every element is added once and in one order, and
// nothing is copied.
#include "backend/cpu/peers/cpu_communicator.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"
#include "base/check.h"
#include "base/resource_limits.h"

namespace nanovllm {
namespace {

constexpr int64_t kTaskElements = 2048;  // stay in the first-level cache while all ranks are added

// `count` elements from `begin` on of every rank's tensor become their sum.
void add_up(const RowKernels& kernels, std::span<const Tensor> tensors, int64_t begin,
            int64_t count) {
  float sum[kTaskElements];
  const auto elements = [&](const Tensor& x) {
    return x.as<char>() + static_cast<size_t>(begin) * size_of(x.dtype);
  };
  kernels.widen(sum, elements(tensors[0]), count);
  for (const Tensor& x : tensors.subspan(1)) kernels.add(sum, elements(x), count, 1);
  for (const Tensor& x : tensors) kernels.scale(elements(x), sum, nullptr, count, 1);
}

}  // namespace

std::span<const Tensor> CpuCommunicatorGroup::Rank::exchange(Tensor x) {
  group_.tensors_[rank_] = x;
  group_.barrier_.arrive_and_wait();
  for (const Tensor& other : group_.tensors_) {
    NANOVLLM_CHECK(other.dtype == x.dtype && other.num_elements() == x.num_elements());
  }
  return group_.tensors_;
}

void CpuCommunicatorGroup::Rank::all_reduce(Tensor x) {
  const RowKernels kernels = row_kernels(isa_, x.dtype);
  const std::span<const Tensor> tensors = exchange(x);
  const int64_t begin = x.num_elements() * rank_ / world_size();
  const int64_t end = x.num_elements() * (rank_ + 1) / world_size();
  pool_.parallel_for((end - begin + kTaskElements - 1) / kTaskElements, [&](int64_t task, int) {
    const int64_t from = begin + task * kTaskElements;
    add_up(kernels, tensors, from, std::min(end - from, kTaskElements));
  });
  group_.barrier_.arrive_and_wait();
}

void CpuCommunicatorGroup::Rank::all_gather(Tensor out, Tensor x) {
  NANOVLLM_CHECK(out.num_elements() == x.num_elements() * world_size());
  const std::span<const Tensor> tensors = exchange(x);
  const size_t bytes = static_cast<size_t>(x.row_size()) * size_of(x.dtype);
  pool_.parallel_for(x.rows() * world_size(), [&](int64_t task, int) {
    const Tensor& source = tensors[task % world_size()];
    std::memcpy(out.as<char>() + task * bytes, source.as<char>() + task / world_size() * bytes,
                bytes);
  });
  group_.barrier_.arrive_and_wait();
}

CpuCommunicatorGroup::CpuCommunicatorGroup(int world_size)
    : CommunicatorGroup(world_size, world_size <= usable_cpus()), tensors_(world_size) {}

void CpuCommunicatorGroup::join(int rank, Backend& backend) {
  dynamic_cast<CpuBackend&>(backend).join(*this, rank);
}

void CpuBackend::join(CpuCommunicatorGroup& group, int rank) {
  rank_.emplace(group, rank, pool_, isa_);
}

void CpuBackend::all_reduce(Tensor x) {
  if (rank_) rank_->all_reduce(x);
}

void CpuBackend::all_gather(Tensor out, Tensor x) {
  if (rank_) rank_->all_gather(out, x);
}

}  // namespace nanovllm
