// Products of 1 to 8 rows in parts: y[R,N] = x[R,K] W[N,K]^T, see linear_parts.h, bound by the
// 2 N K bytes of weights.
//
// A warp multiplies 8 kTiles features by its part of K, with mma.m16n8k16 whose 16 lines are x's
// rows, of which the last eight are none. Weights and rows come to a ring of stages of the warp's
// own, 64 elements of K each, so that no barrier stands between the stream and the products; the
// first stages' weights before the kernel waits for its predecessor.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/linear/linear_parts.h"

namespace nanovllm::cuda {
namespace {

constexpr int kStageChunk = 64;                  // elements of K of a stage
constexpr int kTileBytes = 8 * kStageChunk * 2;  // of 8 lines of a stage

template <int kTiles>
struct FewShape {
  static constexpr int kStageBytes = (kTiles + 1) * kTileBytes;  // weights, then x
  static constexpr int kFit = (100 << 10) / (kNumParts * kStageBytes);
  static constexpr int kStages = kFit < 16 ? kFit : 16;
  static constexpr int kFeatures = kTiles * 8;
  static constexpr int kSums = kNumParts * 8 * kFeatures;  // floats
  static constexpr int kSharedBytes = kNumParts * kStages * kStageBytes + kSums * 4;
};

__device__ inline void finish_element(const PartsProduct& p, int row, int feature, float y) {
  if (row >= p.rows || feature >= p.out_features) return;
  if (p.bias != nullptr) y += p.bias[feature];
  const int64_t i = static_cast<int64_t>(row) * p.out_features + feature;
  if (p.epilogue == Epilogue::kAdd) {
    static_cast<float*>(p.out)[i] += round_to_bfloat16(y);
  } else if (p.out_dtype == DType::kFloat32) {
    static_cast<float*>(p.out)[i] = y;
  } else {
    store(static_cast<__nv_bfloat16*>(p.out) + i, y);
  }
}

// A warp's ring and its place in the stream of groups and chunks.
template <int kTiles>
class FewStream {
 public:
  using S = FewShape<kTiles>;

  __device__ FewStream(const PartsProduct& p, const FewPartsPlan& plan, char* ring)
      : p_(p),
        ring_(shared_address(ring)),
        group_(static_cast<int>(blockIdx.x)),
        groups_(plan.groups) {
    const PartSteps steps = steps_of_part(p.in_features, static_cast<int>(threadIdx.x) / 32);
    first_ = steps.first * kPartStep;
    end_ = min(p.in_features, (steps.first + steps.count) * kPartStep);
    chunks_ = (steps.count * kPartStep + kStageChunk - 1) / kStageChunk;
  }

  __device__ int chunks() const { return chunks_; }

  __device__ void fetch_weights(int stage) const {
    if (is_over()) return;
    const auto* weight = static_cast<const __nv_bfloat16*>(p_.weight);
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const int feature = group_ * S::kFeatures + i * 4 + line();
      const bool valid = feature < p_.out_features && k() < end_;
      copy_async(place(stage, i), weight + (valid ? int64_t{feature} * p_.in_features + k() : 0),
                 valid);
    }
  }
  __device__ void fetch_rows(int stage) const {
    if (is_over()) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool valid = has_row(i);
      copy_async(place(stage, kTiles * 2 + i), row_piece(i, valid), valid);
    }
  }
  // The same through registers, beside weights that are on their way.
  __device__ void read_rows(uint4 (&x)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = make_uint4(0, 0, 0, 0);
      if (!is_over() && has_row(i)) x[i] = *reinterpret_cast<const uint4*>(row_piece(i, true));
    }
  }
  __device__ void store_rows(int stage, const uint4 (&x)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place(stage, kTiles * 2 + i)),
                   "r"(x[i].x), "r"(x[i].y), "r"(x[i].z), "r"(x[i].w)
                   : "memory");
    }
  }
  __device__ void next() {
    if (++chunk_ < chunks_) return;
    chunk_ = 0;
    group_ += static_cast<int>(gridDim.x);
  }

 private:
  // Lines of 128 bytes whose pieces of 16 are swizzled within 8 lines: four lines a turn.
  __device__ static int line() { return static_cast<int>(threadIdx.x) % 32 / 8; }
  __device__ int k() const {
    return first_ + chunk_ * kStageChunk + static_cast<int>(threadIdx.x) % 8 * 8;
  }
  __device__ bool is_over() const { return group_ >= groups_; }
  __device__ uint32_t place(int stage, int turn) const {
    const int at = turn * 4 + line();
    const int piece = static_cast<int>(threadIdx.x) % 8 ^ at % 8;
    return ring_ + stage * S::kStageBytes + at * 128 + piece * 16;
  }
  __device__ bool has_row(int turn) const { return turn * 4 + line() < p_.rows && k() < end_; }
  __device__ const __nv_bfloat16* row_piece(int turn, bool valid) const {
    return static_cast<const __nv_bfloat16*>(p_.x) +
           (valid ? int64_t{turn * 4 + line()} * p_.in_features + k() : 0);
  }

  const PartsProduct& p_;
  const uint32_t ring_;
  int group_;
  const int groups_;
  int first_, end_, chunks_;
  int chunk_ = 0;
};

// One stage: rows are lines of the left operand, features those of the right one.
template <int kTiles>
__device__ void multiply_stage(float (&sums)[kTiles][4], uint32_t stage) {
  const int line = static_cast<int>(threadIdx.x) % 8,
            piece = static_cast<int>(threadIdx.x) % 32 / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t at = stage + line * 128 + ((half * 4 + piece) ^ line) * 16;
    uint32_t x[4];
    load_matrices(x, at + kTiles * kTileBytes);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t w[4];
      load_matrices(w, at + tile * kTileBytes);
      mma_bf16(sums[tile], {x[0], 0u, x[1], 0u}, w[0], w[1]);
      mma_bf16(sums[tile], {x[2], 0u, x[3], 0u}, w[2], w[3]);
    }
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kNumParts * 32)
    few_parts_kernel(const __grid_constant__ PartsProduct p,
                     const __grid_constant__ FewPartsPlan plan) {
  using S = FewShape<kTiles>;
  extern __shared__ uint4 shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  char* ring = reinterpret_cast<char*>(shared) + warp * (S::kStages * S::kStageBytes);
  auto* partials = reinterpret_cast<float*>(reinterpret_cast<char*>(shared) +
                                            kNumParts * S::kStages * S::kStageBytes);
  FewStream<kTiles> stream(p, plan, ring), rows = stream;
#pragma unroll 1
  for (int stage = 0; stage < S::kStages; ++stage, stream.next()) {
    stream.fetch_weights(stage);
    commit_copies();
  }
  release_successor();
  wait_for_predecessor();
  uint4 x[S::kStages][2];
#pragma unroll
  for (int stage = 0; stage < S::kStages; ++stage, rows.next()) rows.read_rows(x[stage]);
#pragma unroll
  for (int stage = 0; stage < S::kStages; ++stage) rows.store_rows(stage, x[stage]);

  int stage = 0;
  for (int group = blockIdx.x; group < plan.groups; group += gridDim.x) {
    float sums[kTiles][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < stream.chunks(); ++chunk) {
      wait_for_copies<S::kStages - 1>();
      __syncwarp();
      multiply_stage<kTiles>(sums, shared_address(ring) + stage * S::kStageBytes);
      __syncwarp();
      stream.fetch_weights(stage);
      stream.fetch_rows(stage);
      commit_copies();
      stream.next();
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }
    const int row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float* target = partials + (warp * 8 + row) * S::kFeatures + tile * 8 + column;
      *reinterpret_cast<float2*>(target) = make_float2(sums[tile][0], sums[tile][1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.rows * S::kFeatures; i += kNumParts * 32) {
      float total = 0;
#pragma unroll
      for (int part = 0; part < kNumParts; ++part) total += partials[part * 8 * S::kFeatures + i];
      finish_element(p, i / S::kFeatures, group * S::kFeatures + i % S::kFeatures, total);
    }
    __syncthreads();  // the partial sums are read until then
  }
}

}  // namespace

void launch_few_parts(cudaStream_t stream, const PartsProduct& p, const FewPartsPlan& plan) {
  with_constant<1, 2, 3>(plan.tiles, [&]<int kTiles>() {
    launch(stream, few_parts_kernel<kTiles>, plan.blocks, kNumParts * 32,
           FewShape<kTiles>::kSharedBytes, p, plan);
  });
}

}  // namespace nanovllm::cuda
