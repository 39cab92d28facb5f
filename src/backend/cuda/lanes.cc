// Two halves of a batch of decodes side by side, each on a stream of its own: while one half reads
// its keys and values, the other one's products, which wait for each other and for L2 more than for
// memory, find multiprocessors of their own.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_check.h"

namespace nanovllm {
namespace {

// Measured to gain from here on; the kernels of smaller batches want the whole device.
constexpr int kMinTokens = 129;

}  // namespace

bool CudaBackend::wants_lanes(const ForwardBatch& batch, int64_t layer_bytes) const {
  // Both halves read a layer's weights: the second one out of L2, if they fit.
  return !deterministic_ && properties_.major == 9 && batch.num_tokens >= kMinTokens &&
         batch.num_decodes == batch.num_tokens && batch.num_logits == batch.num_tokens &&
         layer_bytes <= properties_.l2CacheSize;
}

// Two multiprocessors share a port to L2, and one alone can fill it: attention with a block a pair
// reads as fast as with one a multiprocessor. Two less, so that all blocks find room where products
// hold both of a pair; so both lanes' attention fits on the device, whose blocks wait for each
// other.
int CudaBackend::multiprocessors_for_attention() const {
  const int all = properties_.multiProcessorCount;
  return in_lanes_ ? all / 2 - 2 : all;
}

int CudaBackend::multiprocessors_for_products() const {
  return in_lanes_ ? properties_.multiProcessorCount - multiprocessors_for_attention() : 0;
}

void CudaBackend::begin_lanes() {
  use_lane(0);
  in_lanes_ = true;
  NANOVLLM_CUDA_CHECK(cudaEventRecord(lanes_event_, lanes_[0].stream));
  NANOVLLM_CUDA_CHECK(cudaStreamWaitEvent(lanes_[1].stream, lanes_event_));
}

void CudaBackend::use_lane(int lane) { lane_ = &lanes_[static_cast<size_t>(lane)]; }

void CudaBackend::end_lanes() {
  leave_lanes();
  NANOVLLM_CUDA_CHECK(cudaEventRecord(lanes_event_, lanes_[1].stream));
  NANOVLLM_CUDA_CHECK(cudaStreamWaitEvent(lanes_[0].stream, lanes_event_));
}

void CudaBackend::leave_lanes() {
  use_lane(0);
  in_lanes_ = false;
}

void CudaBackend::forget_plans() {
  for (Lane& lane : lanes_) lane.decode_plans->forget();
}

}  // namespace nanovllm
