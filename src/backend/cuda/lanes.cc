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

int CudaBackend::min_lane_tokens(int64_t layer_bytes) const {
  // The second half finds the weights in L2, if they fit.
  return has_lanes() && layer_bytes <= properties_.l2CacheSize ? kMinTokens : 0;
}

// Two multiprocessors share a port to L2, and one alone can fill it: attention with a block a pair
// reads as fast as with one a multiprocessor. Two less leave room where products hold both of a
// pair. Blocks of one attention wait for each other, so those of both lanes must fit on the device
// at once.
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
  use_lane(0);
  in_lanes_ = false;
  NANOVLLM_CUDA_CHECK(cudaEventRecord(lanes_event_, lanes_[1].stream));
  NANOVLLM_CUDA_CHECK(cudaStreamWaitEvent(lanes_[0].stream, lanes_event_));
}

void CudaBackend::forget_plans() {
  for (Lane& lane : lanes_) {
    if (lane.decode_plans != nullptr) lane.decode_plans->forget();
  }
}

}  // namespace nanovllm
