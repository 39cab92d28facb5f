// How the blocks of the layer tail's kernel hand intermediate rows to each other; see
// hand_over.cuh. Launches take two sets of rows in turn, and each fills the other one, which the
// launch before it was done with, with holes.
#pragma once

#include <cstdint>

#include "backend/cuda/device/hand_over.cuh"

namespace nanovllm::cuda {

constexpr int kTailRows = 8;
constexpr int kMaxTailHidden = 1024;
constexpr int kMaxTailWidth = 4096;  // of the MLP
constexpr int kTailWarps = 8;        // of a block that compute
constexpr int kMaxTailBlocks = 256;

// Words of one row that is handed over.
struct TailRow {
  uint32_t residual[2][kMaxTailHidden];  // [H] float32, with the attention's and the MLP's output
  uint32_t mlp[kMaxTailWidth / 2];       // [I] bfloat16
};

// All bytes are 0xff at first.
struct TailMemory {
  TailRow rows[2][kTailRows];
  // Number of a launch and, in the lowest kRowBits, its rows: of the last one. Each warp has its
  // own, so that none need wait for others.
  static constexpr int kRowBits = 4;
  uint32_t last[kMaxTailBlocks][kTailWarps];
};

// One launch's rows, as a block sees them.
class TailExchange {
 public:
  __device__ explicit TailExchange(TailMemory& memory)
      : memory_(memory),
        state_(&memory.last[blockIdx.x][threadIdx.x / 32]),
        last_(__ldcg(state_)) {}

  __device__ TailRow* rows() const { return memory_.rows[number() % 2]; }

  // Leaves holes in the rows of the launch before.
  __device__ void clear_last() const {
    constexpr int kVectors = sizeof(TailRow) / sizeof(uint4);
    constexpr uint32_t kRowMask = (1 << TailMemory::kRowBits) - 1;
    const int num_vectors = min(static_cast<int>(last_ & kRowMask), kTailRows) * kVectors;
    auto* vectors = reinterpret_cast<uint4*>(memory_.rows[(number() + 1) % 2]);
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x * kTailWarps * 32 + threadIdx.x); i < num_vectors;
         i += static_cast<int>(gridDim.x) * kTailWarps * 32) {
      vectors[i] = kHoles;
    }
  }
  // All lanes call it together, at the end.
  __device__ void finish(int num_rows) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) *state_ = number() << TailMemory::kRowBits | num_rows;
  }

 private:
  __device__ uint32_t number() const { return (last_ >> TailMemory::kRowBits) + 1; }

  TailMemory& memory_;
  uint32_t* const state_;
  const uint32_t last_;
};

}  // namespace nanovllm::cuda
