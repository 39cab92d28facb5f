// A row of logits in the hands of a thread block that knows the statistics of the row's blocks.
//
// Nothing here reads the row as a whole unless it has to: a block whose largest logit is below the
// row's current threshold is skipped. How thresholds are found is in sampling_row_threshold.cuh.
#pragma once

#include <cstdint>

#include "backend/cuda/sampling/sampling_block.cuh"

namespace nanovllm::cuda {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int32_t kAllTies = INT32_MAX;

// Tokens with logit >= `logit`, of its equals only those with ids up to `last_tie`.
struct Threshold {
  float logit = kMinusInfinity;
  int32_t last_tie = kAllTies;

  // Without && and ||: branches would keep the tokens of a lane apart.
  __device__ bool keeps(float x, int32_t id) const {
    return (x > logit) | ((x == logit) & (id <= last_tie));
  }
};

// What a token counts for: one, or its weight.
enum class Measure { kCount, kMass };

// All threads of the block call every method together.
class RowInBlock {
 public:
  // `shared` holds sampling_shared_bytes. `mask`: of the allowed tokens, null = all.
  __device__ RowInBlock(char* shared, const float* logits, const uint32_t* mask, int64_t vocab_size,
                        int num_blocks, bool vector_aligned)
      : candidates_(reinterpret_cast<unsigned long long*>(shared)),
        max_(reinterpret_cast<float*>(candidates_ + kMaxCandidates)),
        mass_(max_ + num_blocks),
        list_(reinterpret_cast<uint16_t*>(mass_ + num_blocks)),
        logits_(logits),
        mask_(mask),
        vocab_size_(vocab_size),
        num_blocks_(num_blocks),
        vector_aligned_(vector_aligned) {}

  // Takes over the statistics of the blocks; rate = log2(e) / temperature. False when the row has
  // no distribution. Afterwards total_mass() and find() are about all weights.
  __device__ bool load_stats(const BlockStats* stats, float rate);

  __device__ float top() const { return top_; }  // the largest logit
  __device__ float logit(int32_t id) const { return logits_[id]; }
  __device__ float weight(float x) const { return weight_of(x, top_, rate_); }
  // A function for measure() and find().
  __device__ auto weight_of_kept(const Threshold& kept) const {
    return [top = top_, rate = rate_, kept](float x, int32_t id) {
      const float weight = weight_of(x, top, rate);
      return kept.keeps(x, id) ? weight : 0.f;
    };
  }

  // Sets the blocks' masses to what f(x, id) gives for their tokens together, and returns the sum.
  // f must be 0 for NaN and below `lowest`.
  template <typename F>
  __device__ double measure(float lowest, F&& f);
  // The sum of the blocks' masses.
  __device__ double total_mass();
  // The first token at which the running sum of f over the ids exceeds `target`; the last one with
  // a positive f when none does, -1 when there is none. The blocks' masses are those of f.
  template <typename F>
  __device__ int32_t find(double target, F&& f) const;
  __device__ int32_t first_largest();

  // The fewest most likely tokens, smaller ids first among equals, that measure `needed` together,
  // and always one. What is below `lowest` is known not to be needed; all the rest where that does
  // not suffice. Overwrites the blocks' masses.
  template <Measure kMeasure>
  __device__ Threshold keep_fewest(float lowest, double needed);
  // A value that at least k logits reach, and not many more; -inf where the maxima of the blocks do
  // not tell.
  __device__ float bound_of_kth_largest(int k) const;

  // Collects the tokens, at most kMaxCandidates, that `threshold` keeps; returns their number.
  __device__ int collect_kept(const Threshold& threshold);
  // The i-th most likely of those collected.
  __device__ int32_t candidate_id(int i) const {
    return static_cast<int32_t>(~static_cast<uint32_t>(candidates_[i]));
  }
  __device__ float candidate_logit(int i) const {
    return from_unsigned_key(static_cast<uint32_t>(candidates_[i] >> 32));
  }

 private:
  static constexpr uint32_t kSign = 0x80000000u;
  static constexpr int kPivots = 7;
  static constexpr int kInFlight = 4;  // blocks that a warp loads at a time

  // Undecided tokens: lowest <= logit <= highest. Those above measure `above`.
  struct Interval {
    float lowest;
    float highest;
    double above;
  };

  __device__ static uint32_t unsigned_key(float x) {
    return static_cast<uint32_t>(ordered(x)) ^ kSign;
  }
  __device__ static float from_unsigned_key(uint32_t key) {
    return from_ordered(static_cast<int32_t>(key ^ kSign));
  }
  __device__ static unsigned long long candidate(float x, int32_t id) {
    return static_cast<unsigned long long>(unsigned_key(x)) << 32 | ~static_cast<uint32_t>(id);
  }
  template <Measure kMeasure>
  __device__ float measure_of(float x) const {
    if constexpr (kMeasure == Measure::kCount) return 1;
    return weight(x);
  }
  __device__ int list_blocks(float lowest);
  template <typename F>
  __device__ void visit(float lowest, F&& f);
  template <typename F>
  __device__ void for_own_blocks(F&& f) const;
  template <typename F>
  __device__ int32_t find_in_block(int block, double before, double target, F&& f) const;
  template <typename F>
  __device__ int collect(float lowest, F&& wanted);
  __device__ void sort_candidates(int count);
  __device__ void sort_few_candidates(int count);
  template <Measure kMeasure>
  __device__ Threshold cross_candidates(int count, double needed) const;
  template <Measure kMeasure>
  __device__ Threshold cross_ties(float x, double needed);
  template <Measure kMeasure>
  __device__ void cut(Interval& interval, double needed);

  unsigned long long* const candidates_;  // [kMaxCandidates] logit and id: larger is more likely
  float* const max_;                      // [num_blocks]
  float* const mass_;                     // [num_blocks]
  uint16_t* const list_;                  // [num_blocks] the blocks to visit
  const float* const logits_;
  const uint32_t* const mask_;
  const int64_t vocab_size_;
  const int num_blocks_;
  const bool vector_aligned_;
  float top_ = 0;
  float rate_ = 0;
};

// Across the bus, as one read: the whole block calls it.
__device__ inline void load_params(RowParams& shared, const RowParams* params) {
  constexpr int kWords = sizeof(RowParams) / sizeof(int32_t);
  if (threadIdx.x < kWords) {
    reinterpret_cast<int32_t*>(&shared)[threadIdx.x] =
        reinterpret_cast<const int32_t*>(params)[threadIdx.x];
  }
  __syncthreads();
}

// The sum of the x of all threads before this one, and of all threads.
__device__ inline double exclusive_sum(double x, double& total) {
  __shared__ double warp_sums[kRowWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const double inclusive = warp_prefix_sum(x, lane);
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  double before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) {
    if (w == warp) before = total;
    total += warp_sums[w];
  }
  __syncthreads();  // warp_sums may be used again
  const double previous = __shfl_up_sync(0xffffffffu, inclusive, 1);
  return before + (lane == 0 ? 0 : previous);
}

__device__ inline bool RowInBlock::load_stats(const BlockStats* stats, float rate) {
  __shared__ int32_t largest;
  rate_ = rate;
  if (threadIdx.x == 0) largest = INT32_MIN;
  __syncthreads();
  int32_t key = INT32_MIN;
  for (int b = threadIdx.x; b < num_blocks_; b += kRowThreads) {
    const BlockStats block = stats[b];
    max_[b] = block.max;
    mass_[b] = block.mass;
    key = max(key, ordered(block.max));
  }
  key = __reduce_max_sync(0xffffffffu, key);
  if (threadIdx.x % 32 == 0) atomicMax(&largest, key);
  __syncthreads();
  top_ = from_ordered(largest);
  if (!(top_ > kMinusInfinity && top_ < -kMinusInfinity)) return false;
  for (int b = threadIdx.x; b < num_blocks_; b += kRowThreads) mass_[b] *= weight(max_[b]);
  __syncthreads();
  return true;
}

// Writes the blocks that have a logit from `lowest` on into list_, in order, and returns their
// number. Each warp looks through a run of blocks.
__device__ inline int RowInBlock::list_blocks(float lowest) {
  __shared__ int warp_counts[kRowWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int run = (num_blocks_ + kRowThreads - 1) / kRowThreads * 32;
  const int begin = warp * run;
  const auto is_live = [&](int b) { return b < num_blocks_ && max_[b] >= lowest; };
  int count = 0;
  for (int b = begin + lane; b < begin + run; b += 32) {
    count += __popc(__ballot_sync(0xffffffffu, is_live(b)));
  }
  if (lane == 0) warp_counts[warp] = count;
  __syncthreads();
  int position = 0;
  int total = 0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) {
    if (w == warp) position = total;
    total += warp_counts[w];
  }
  for (int b = begin + lane; b < begin + run; b += 32) {
    const bool live = is_live(b);
    const uint32_t votes = __ballot_sync(0xffffffffu, live);
    if (live) list_[position + __popc(votes & ((1u << lane) - 1))] = static_cast<uint16_t>(b);
    position += __popc(votes);
  }
  __syncthreads();
  return total;
}

// Calls f(first ids of the lane, x) for the blocks that have a logit from `lowest` on, shared out
// among the warps, kInFlight at a time, until it returns false; x is NaN behind the row's end.
// Where fewer blocks are left, f gets id -1 and NaNs: a branch would keep the loads apart. The
// caller lets all threads meet before the next visit.
template <typename F>
__device__ void RowInBlock::visit(float lowest, F&& f) {
  const int count = list_blocks(lowest);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int first = warp * kInFlight; first < count; first += kRowWarps * kInFlight) {
    int32_t id[kInFlight];
    int block[kInFlight];
    float x[kInFlight][4];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      block[i] = first + i < count ? list_[first + i] : -1;
      load_block(x[i], logits_, block[i], vocab_size_, vector_aligned_, kNan);
      id[i] = block[i] < 0 ? -1 : block[i] * kSampleBlock + 4 * lane;
    }
    apply_mask(x, mask_, block, num_blocks_);
    if (!f(id, x)) return;
  }
}

// Calls f(b) for the thread's share of the blocks, a run of neighbours.
template <typename F>
__device__ void RowInBlock::for_own_blocks(F&& f) const {
  const int share = (num_blocks_ + kRowThreads - 1) / kRowThreads;
  const int begin = static_cast<int>(threadIdx.x) * share;
  for (int b = begin; b < min(begin + share, num_blocks_); ++b) f(b);
}

template <typename F>
__device__ double RowInBlock::measure(float lowest, F&& f) {
  for (int b = threadIdx.x; b < num_blocks_; b += kRowThreads) {
    if (max_[b] < lowest) mass_[b] = 0;
  }
  visit(lowest, [&](const int32_t(&id)[kInFlight], const float(&x)[kInFlight][4]) {
    float sum[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      sum[i] = warp_sum((f(x[i][0], id[i]) + f(x[i][1], id[i] + 1)) +
                        (f(x[i][2], id[i] + 2) + f(x[i][3], id[i] + 3)));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (threadIdx.x % 32 == 0 && id[i] >= 0) mass_[id[i] / kSampleBlock] = sum[i];
    }
    return true;
  });
  __syncthreads();
  return total_mass();
}

__device__ inline double RowInBlock::total_mass() {
  double own = 0;
  for_own_blocks([&](int b) { own += mass_[b]; });
  double total;
  exclusive_sum(own, total);
  return total;
}

template <typename F>
__device__ int32_t RowInBlock::find(double target, F&& f) const {
  __shared__ int first_crossing, last_positive;
  __shared__ double before_crossing;
  __shared__ int32_t token;
  if (threadIdx.x == 0) {
    first_crossing = num_blocks_;
    last_positive = -1;
    before_crossing = kMinusInfinity;
    token = -1;
  }
  double own = 0;
  for_own_blocks([&](int b) { own += mass_[b]; });
  double total;
  double cumulative = exclusive_sum(own, total);
  int crossing = -1;
  int positive = -1;
  double before = 0;
  for_own_blocks([&](int b) {
    if (!(mass_[b] > 0)) return;
    positive = b;
    if (crossing < 0 && cumulative + mass_[b] > target) {
      crossing = b;
      before = cumulative;
    }
    cumulative += mass_[b];
  });
  if (crossing >= 0) atomicMin(&first_crossing, crossing);
  if (positive >= 0) atomicMax(&last_positive, positive);
  __syncthreads();
  if (crossing >= 0 && crossing == first_crossing) before_crossing = before;
  const int block = first_crossing < num_blocks_ ? first_crossing : last_positive;
  __syncthreads();
  if (threadIdx.x < 32 && block >= 0) {
    const int32_t found = find_in_block(block, before_crossing, target, f);
    if (threadIdx.x == 0) token = found;
  }
  __syncthreads();
  const int32_t found = token;
  __syncthreads();
  return found;
}

// By one warp: the first token of the block at which the running sum, `before` to begin with,
// exceeds `target`; the last one with a positive f when none does.
template <typename F>
__device__ int32_t RowInBlock::find_in_block(int block, double before, double target, F&& f) const {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t id = block * kSampleBlock + 4 * lane;
  float x[1][4];
  load_block(x[0], logits_, block, vocab_size_, vector_aligned_, kNan);
  apply_mask(x, mask_, {block}, num_blocks_);
  double value[4];
  double sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += value[i] = f(x[0][i], id + i);
  const double inclusive = warp_prefix_sum(sum, lane);
  const double previous = __shfl_up_sync(0xffffffffu, inclusive, 1);
  double cumulative = before + (lane == 0 ? 0 : previous);
  int32_t crossing = -1;
  int32_t positive = -1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!(value[i] > 0)) continue;
    positive = id + i;
    cumulative += value[i];
    if (crossing < 0 && cumulative > target) crossing = id + i;
  }
  const uint32_t crossings = __ballot_sync(0xffffffffu, crossing >= 0);
  const uint32_t positives = __ballot_sync(0xffffffffu, positive >= 0);
  if (crossings != 0) {
    return __shfl_sync(0xffffffffu, crossing, __ffs(static_cast<int>(crossings)) - 1);
  }
  if (positives == 0) return -1;
  return __shfl_sync(0xffffffffu, positive, 31 - __clz(static_cast<int>(positives)));
}

__device__ inline int32_t RowInBlock::first_largest() {
  for (int b = threadIdx.x; b < num_blocks_; b += kRowThreads) mass_[b] = max_[b] == top_ ? 1 : 0;
  __syncthreads();
  return find(0, [&](float x, int32_t) { return x == top_ ? 1.f : 0.f; });
}

}  // namespace nanovllm::cuda
