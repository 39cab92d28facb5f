// What the layer tail's kernel for large layers is given, which features a block of it owns, and
// how blocks and ranks hand rows to each other; see layer_tail_large.cu.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/device/hand_over.cuh"
#include "backend/cuda/layer/layer_tail_exchange.cuh"
#include "backend/cuda/layer/layer_tail_plan.cuh"
#include "backend/cuda/peers/peer_memory.cuh"

namespace nanovllm::cuda {

constexpr int kMaxLargeHidden = 8192;
constexpr int kMaxLargeWidth = 32768;  // of the MLP
static_assert(kTailRows * kMaxLargeHidden / 2 <= kMaxTailLines);
static_assert(kMaxTailBlocks * kTailWarps <= kMaxTailCounts);

// Words of one row that is handed over: two residual streams [H] in float32, with the attention's
// and with the MLP's output, and the MLP's [I] in bfloat16.
constexpr int kMaxLargeWords = 2 * kMaxLargeHidden + kMaxLargeWidth / 2;

// Launches take two sets of rows in turn; see layer_tail_exchange.cuh. All bytes are 0xff at first.
struct LargeTailMemory {
  uint32_t rows[2][kTailRows * kMaxLargeWords];
  // Number of the last launch, and the words of its rows.
  uint2 last[kMaxTailBlocks][kTailWarps];
};

struct LargeProduct : TailMatrix {
  // Of each block but the last ones, and of its passes over K but the last one; multiples of 8.
  int block_features = 0, pass_features = 0;
  int num_passes = 0;
};

struct LargeTailParams : TailRows {
  using TailRows::TailRows;
  LargeProduct products[kNumTailSteps];
  int num_steps = 0;
  Activation activation = Activation::kSilu;
  LargeTailMemory* memory = nullptr;
  PeerGroup group;  // whose ranks' sums of the first and third product are added up

  __host__ __device__ int hidden() const { return products[kGateUpStep].depth; }
  __host__ __device__ int words_of_row() const {
    return 2 * hidden() + products[kGateUpStep].features / 2;
  }
};

#ifdef __CUDACC__

// What a block computes of a product in one pass.
struct OwnFeatures {
  int first, count, num_slots;  // features, and their slots of each kSlotDepth elements of K

  __device__ OwnFeatures(const LargeTailParams& p, int step, int pass) {
    const LargeProduct& product = p.products[step];
    const int begin = static_cast<int>(blockIdx.x) * product.block_features;
    const int end = min(begin + product.block_features, product.features);
    first = begin + pass * product.pass_features;
    count = max(0, min(product.pass_features, end - first));
    num_slots = count / kSlotFeatures * (step == kGateUpStep ? 2 : 1);
  }
  // Of the tensor cores, 16 rows of weights.
  __device__ int num_tiles() const { return (num_slots + 1) / 2; }
};

// One launch's rows, as a warp sees them.
class LargeExchange {
 public:
  __device__ explicit LargeExchange(const LargeTailParams& p)
      : p_(p), state_(&p.memory->last[blockIdx.x][threadIdx.x / 32]), last_(__ldcg(state_)) {
    if (p.group.world_size > 1) tail_number_ = next_number(__ldcg(&last_tail()));
  }

  __device__ uint32_t* residual(int row, int round) const {
    return words(row) + round * p_.hidden();
  }
  __device__ uint32_t* mlp(int row) const { return residual(row, 2); }

  // Two neighbouring features' part of a sum, to all other ranks; `pair` counts over the rows. A
  // rank is one launch ahead of another at most, as it needs an answer.
  __device__ void send_part(int round, int pair, float2 part) const {
    const PeerGroup& group = p_.group;
#  pragma unroll 1
    for (int i = 1; i < group.world_size; ++i) {
      int other = group.rank + i;  // the ranks begin with different links
      if (other >= group.world_size) other -= group.world_size;
      send(line(other, group.rank, round, pair), {__float_as_uint(part.x), __float_as_uint(part.y)},
           tail_number_);
    }
  }
  // The sum of all ranks' parts, the same on all of them. In a loop: code that runs once a launch
  // is to be short, as it has to be fetched.
  __device__ float2 receive_sum(int round, int pair, float2 own_part, Patience& patience) const {
    const PeerGroup& group = p_.group;
    float2 sum = {0, 0};
#  pragma unroll 1
    for (int rank = 0; rank < group.world_size; ++rank) {
      uint2 part = {__float_as_uint(own_part.x), __float_as_uint(own_part.y)};
      if (rank != group.rank) {
        receive(line(group.rank, rank, round, pair), tail_number_, part, patience);
      }
      sum.x += __uint_as_float(part.x);
      sum.y += __uint_as_float(part.y);
    }
    return sum;
  }

  // Leaves holes in the rows of the launch before.
  __device__ void clear_last() const {
    const int count = static_cast<int>(min(last_.y, kTailRows * kMaxLargeWords));
    auto* vectors = reinterpret_cast<uint4*>(p_.memory->rows[(number() + 1) % 2]);
    for (int i = static_cast<int>(blockIdx.x * kTailWarps * 32 + threadIdx.x); i < count / 4;
         i += static_cast<int>(gridDim.x) * kTailWarps * 32) {
      vectors[i] = kHoles;
    }
  }
  // All lanes call it together, at the end.
  __device__ void finish() const {
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    *state_ = {number(), static_cast<uint32_t>(p_.rows * p_.words_of_row())};
    if (p_.group.world_size > 1) last_tail() = tail_number_;
  }

 private:
  __device__ uint32_t number() const { return last_.x + 1; }
  __device__ uint32_t* words(int row) const {
    return p_.memory->rows[number() % 2] + row * p_.words_of_row();
  }
  __device__ Line* line(int owner, int source, int round, int pair) const {
    return &p_.group.memory[owner]->tail_lines[tail_number_ % 2][round][source][pair];
  }
  // A group's ranks count alike, whatever their backends have done before.
  __device__ uint32_t& last_tail() const {
    return p_.group.memory[p_.group.rank]->last_tail[blockIdx.x * kTailWarps + threadIdx.x / 32];
  }

  const LargeTailParams& p_;
  uint2* const state_;
  const uint2 last_;
  uint32_t tail_number_ = 0;  // among the group's tails
};

#endif

}  // namespace nanovllm::cuda
