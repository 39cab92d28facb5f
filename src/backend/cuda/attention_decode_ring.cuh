// A warp's tiles of keys and values on their way from memory: a ring of stages in shared memory, of
// 16 tokens' keys and values each, row by row as they lie in the cache. Enough bytes must be under
// way to cover the latency of the memory; copies of less than a row's 128 bytes a warp would cost
// twice the traffic between L2 and the multiprocessor. sm_90 and later have a copy engine for it.
#pragma once

#include "backend/cuda/attention_decode_share.cuh"
#include "backend/cuda/bulk_copy.cuh"

namespace nanovllm::cuda {

constexpr int kMinStages = 2, kMaxStages = 6;

// Bytes of a tile's keys and values.
template <int kDim>
constexpr int kTileBytes = 2 * kTile* kDim * 2;

template <int kDim>
class TileRing {
 public:
  // `arrived`: [kMaxStages] in shared memory.
  __device__ TileRing(char* data, uint64_t* arrived, int stages)
      : data_(data), arrived_(arrived), stages_(stages) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
#  pragma unroll 1
      for (int i = 0; i < stages; ++i) init_barrier(arrived + i, 1);
      publish_barriers();
    }
    __syncwarp();
#endif
  }

  // Starts the copies of a tile into the stage that was released last (at first: into one after the
  // other). Null: there is none.
  __device__ void fetch(const __nv_bfloat16* k_tile, const __nv_bfloat16* v_tile) {
    constexpr int kBytes = kTileBytes<kDim> / 2;
    char* const stage = data_ + fetched_ * kTileBytes<kDim>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (k_tile != nullptr && threadIdx.x % 32 == 0) {
      expect_bytes(arrived_ + fetched_, 2 * kBytes);
      copy_bulk(stage, k_tile, kBytes, arrived_ + fetched_);
      copy_bulk(stage + kBytes, v_tile, kBytes, arrived_ + fetched_);
    }
#else
    for (int i = threadIdx.x % 32 * 16; k_tile != nullptr && i < kBytes; i += 32 * 16) {
      copy_async(shared_address(stage + i), reinterpret_cast<const char*>(k_tile) + i, true);
      copy_async(shared_address(stage + kBytes + i), reinterpret_cast<const char*>(v_tile) + i,
                 true);
    }
    commit_copies();
#endif
    fetched_ = fetched_ + 1 == stages_ ? 0 : fetched_ + 1;
  }

  // The oldest tile, once it is there: keys, then values.
  __device__ const char* wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    wait_for_barrier(arrived_ + read_, parity_);
#else
    wait_for_groups();
    __syncwarp();
#endif
    return data_ + read_ * kTileBytes<kDim>;
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
    switch (stages_) {
      case 2:
        return wait_for_copies<1>();
      case 3:
        return wait_for_copies<2>();
      case 4:
        return wait_for_copies<3>();
      case 5:
        return wait_for_copies<4>();
      default:
        return wait_for_copies<5>();
    }
  }

  char* const data_;
  uint64_t* const arrived_;
  const int stages_;
  int fetched_ = 0, read_ = 0, parity_ = 0;
};

}  // namespace nanovllm::cuda
