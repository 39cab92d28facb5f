// A warp's tiles of keys and values on their way from memory: a ring of stages in shared memory, of
// 16 tokens' keys and values each, as they lie in the cache. Two of eight warps cover the latency
// of the memory; more would wait for each other, keep a multiprocessor from the blocks of the
// kernels before and after, and let warps end at different times. From sm_90 on the copy engine
// brings a tile at one thread's word.
#pragma once

#include "backend/cuda/attention/attention_decode_plan.h"
#include "backend/cuda/device/bulk_copy.cuh"
#include "backend/cuda/device/mma.cuh"

namespace nanovllm::cuda {

constexpr int kMaxTileStages = 2;

template <int kDim>
class TileRing {
 public:
  static constexpr int kHalfBytes = kTile * kDim * 2;  // keys, or the values behind them
  static constexpr int kTileBytes = 2 * kHalfBytes;
  static constexpr int kAlignment = 128;  // see copy_bulk()

  // `data`: stages * kTileBytes. `arrived`: [kMaxTileStages] in shared memory.
  __device__ TileRing(char* data, Barrier* arrived, int stages)
      : data_(data), arrived_(arrived), stages_(stages) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
#  pragma unroll 1
      for (int i = 0; i < stages; ++i) arrived[i].init(1);
      publish_barriers();
    }
    __syncwarp();
#endif
  }

  // Starts the copies of a tile into the stage that was released last (at first: into one after the
  // other). Null: there is none.
  __device__ void fetch(const __nv_bfloat16* keys, const __nv_bfloat16* values) {
    const uint32_t stage = shared_address(data_ + fetched_ * kTileBytes);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (keys != nullptr && threadIdx.x % 32 == 0) {
      arrived_[fetched_].expect(kTileBytes);
      copy_bulk(stage, keys, kHalfBytes, arrived_[fetched_], kEvictFirst);
      copy_bulk(stage + kHalfBytes, values, kHalfBytes, arrived_[fetched_], kEvictFirst);
    }
#else
    for (int i = threadIdx.x % 32 * 16; keys != nullptr && i < kHalfBytes; i += 32 * 16) {
      copy_async(stage + i, reinterpret_cast<const char*>(keys) + i, true);
      copy_async(stage + kHalfBytes + i, reinterpret_cast<const char*>(values) + i, true);
    }
    commit_copies();
#endif
    fetched_ = fetched_ + 1 == stages_ ? 0 : fetched_ + 1;
  }

  // The oldest tile, once it is there.
  __device__ char* wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    arrived_[read_].wait(parity_);
#else
    wait_for_groups();
    __syncwarp();
#endif
    return data_ + read_ * kTileBytes;
  }

  // After writes of the warp to the oldest tile.
  __device__ void order_writes() const {
    __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    order_copies_behind_writes();
#endif
  }

  // The warp has read the oldest tile.
  __device__ void release() {
    __syncwarp();
    if (++read_ == stages_) {
      read_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  // Until the oldest of the ring's groups of copies has arrived.
  __device__ void wait_for_groups() const {
    if (stages_ == 1) {
      wait_for_copies<0>();
    } else {
      wait_for_copies<1>();
    }
  }

  char* const data_;
  Barrier* const arrived_;
  const int stages_;
  int fetched_ = 0, read_ = 0, parity_ = 0;
};

}  // namespace nanovllm::cuda
