// Mixtures of experts for so few rows that hardly two of them choose the same expert: bound by the
// bytes of the chosen experts' weights, if nothing but two kernels stands between the router's
// logits and the result, and weights are always on their way. Every block finds out for itself what
// the rows choose, in the second kernel while the first still runs, whose first weights come then;
// no pair is sorted. A warp computes one element after the other, each from rows of weights that
// its lanes share: of gate and up of a pair, then of a row's result, for which it adds up what all
// of the row's experts give, unrounded. A row's bits do not depend on the others.
//
// Every lane copies the weights that it multiplies itself, 16 bytes at a time, ahead through the
// warp's elements, into slots of shared memory that it alone reads: what registers or the small L1
// beside so much shared memory could hold would be too little under way.
#include <algorithm>

#include "backend/cuda/experts/routing.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/layer/activation.cuh"
#include "backend/cuda/linear/mma.cuh"
#include "backend/cuda/linear/warp_rows.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kBlocks = 2;  // of a multiprocessor, of each of the two kernels
constexpr int kSlots = 12;  // of a lane

struct Few {
  RouterParams router;
  const float* logits;
  ExpertProduct product;
  const void* shared;  // [T, H], or none
  int num_rows;
  int features, items;  // of the result's rows, and of all of them: its elements
  int slots;            // pairs that an element is of
  int pairs_of_x;       // that have a row of x in common
};

// Where an element's weights for one of its pairs begin, among all rows of weights; < 0: they are
// another rank's.
__device__ inline int weight_row(const Few& few, const int32_t* ids, int item, int slot) {
  if (item >= few.items) return -1;
  const int expert = ids[item / few.features * few.slots + slot] - few.router.first;
  if (expert < 0 || expert >= few.router.count) return -1;
  return expert * few.product.out_features + item % few.features;
}

// The lane's vectors of weights in the order of their use, of kParts rows at a time: gate and up.
template <typename T, int kParts>
class Weights {
 public:
  __device__ Weights(const Few& few, const int32_t* ids, uint4* slots, int item)
      : few_(few), ids_(ids), slots_(slots + threadIdx.x), item_(item) {
    row_ = weight_row(few, ids, item, 0);
    for (int i = 0; i < kStages; ++i) fetch();
  }

  // The oldest ones; asks for others in their place.
  __device__ void take(uint4 (&w)[kParts]) {
    wait_for_copies<kStages - 1>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) w[part] = slots_[(stage_ * kParts + part) * kThreads];
    fetch();
  }

 private:
  static constexpr int kStages = kSlots / kParts;

  __device__ void fetch() {
    const int k = few_.product.in_features;
    const int at = (first_ + static_cast<int>(threadIdx.x) % 32) * kVectorOf<T>;
    const bool exists = row_ >= 0 && at < k;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t row = exists ? row_ + part * few_.features : 0;
      copy_async(shared_address(&slots_[(stage_ * kParts + part) * kThreads]),
                 static_cast<const T*>(few_.product.weight) + row * k + (exists ? at : 0), exists);
    }
    commit_copies();
    if (++stage_ == kStages) stage_ = 0;
    first_ += 32;
    if (first_ * kVectorOf<T> < k) return;
    first_ = 0;
    if (++slot_ == few_.slots) slot_ = 0, item_ += static_cast<int>(gridDim.x) * kWarps;
    row_ = weight_row(few_, ids_, item_, slot_);
  }

  const Few& few_;
  const int32_t* const ids_;
  uint4* const slots_;
  int item_, row_, slot_ = 0, first_ = 0, stage_ = 0;
};

template <typename T, int kParts>
__device__ void compute(const Few& few, Weights<T, kParts>& weights, int item, const int32_t* ids,
                        const float* scores) {
  constexpr int n = kVectorOf<T>;
  const ExpertProduct& p = few.product;
  const int k = p.in_features, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (; item < few.items; item += static_cast<int>(gridDim.x) * kWarps) {
    const int row = item / few.features;  // of the result
    float total[kParts] = {};
#pragma unroll 1
    for (int slot = 0; slot < few.slots; ++slot) {
      const int pair = row * few.slots + slot;
      const T* x = static_cast<const T*>(p.x) + int64_t{pair / few.pairs_of_x} * k;
      float sum[kParts] = {};
#pragma unroll 2
      for (int i = lane * n; i < k + lane * n; i += 32 * n) {
        uint4 w[kParts];
        float wide[n], v[n] = {};
        if (i < k) load_vector(v, x + i);
        weights.take(w);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          load_vector(wide, reinterpret_cast<const T*>(&w[part]));
#pragma unroll
          for (int e = 0; e < n; ++e) sum[part] = fmaf(v[e], wide[e], sum[part]);
        }
      }
      const int weight = p.bias == nullptr ? -1 : weight_row(few, ids, item, slot);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (weight >= 0 && lane == 0) sum[part] += p.bias[weight + part * few.features];
        total[part] = fmaf(p.is_gated ? 1.f : scores[pair], sum[part], total[part]);
      }
    }
#pragma unroll
    for (float& x : total) x = warp_sum(x);
    if (lane != 0) continue;
    float y = total[0];
    if constexpr (kParts == 2) y = gate_and_mul(p.activation, total[0], total[1]);
    if (few.shared != nullptr)
      y += shared_gate(few.router, few.logits + int64_t{row} * few.router.num_logits) *
           load(static_cast<const T*>(few.shared) + item);
    store(static_cast<T*>(p.out) + item, y);
  }
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kThreads, 2 * kBlocks)
    few_kernel(const __grid_constant__ Few few) {
  extern __shared__ uint4 slots[];
  __shared__ int32_t ids[kMaxFewPairs];
  __shared__ float scores[kMaxFewPairs];
  // The first kernel waits for the logits before the second may start, which so may read them.
  if constexpr (kParts == 2) wait_for_predecessor();
  release_successor();
  auto* memory = reinterpret_cast<float*>(slots + kSlots * kThreads);
  route_rows(few.router, few.logits, few.num_rows, memory, ids, scores);
  __syncthreads();
  const int item = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  Weights<T, kParts> weights(few, ids, slots, item);
  if constexpr (kParts == 1) wait_for_predecessor();
  compute<T, kParts>(few, weights, item, ids, scores);
}

}  // namespace

void launch_few(cudaStream_t stream, const RouterParams& router, const ExpertStep& step,
                const ExpertProduct& gate_up, const ExpertProduct& down, const void* shared,
                DType dtype, int num_multiprocessors) {
  const size_t bytes = sizeof(uint4) * kSlots * kThreads +
                       size_t{3} * router.num_experts * step.num_rows * sizeof(float);
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto kernel, const Few& few) {
      launch(stream, kernel, std::min(div_up(few.items, kWarps), kBlocks * num_multiprocessors),
             kThreads, bytes, few);
    };
    const int rows = step.num_rows, active = router.num_active, width = down.in_features;
    run(few_kernel<T, 2>,
        {router, step.logits, gate_up, nullptr, rows, width, rows * active * width, 1, active});
    run(few_kernel<T, 1>, {router, step.logits, down, shared, rows, down.out_features,
                           rows * down.out_features, active, 1});
  });
}

}  // namespace nanovllm::cuda
