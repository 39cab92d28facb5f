// The thresholds of a row of logits (the k-th largest, the last token that top_p needs).
//
// They are found by collecting the logits that may be it into shared memory and sorting those.
// Where they are too many, a pass that weighs what lies above seven values cuts the interval that
// holds the threshold into seven, as often as it takes; for a flat row of 150,000 logits twice.
#pragma once

#include <cfloat>
#include <cstdint>

#include "backend/cuda/sampling/sampling_row.cuh"

namespace nanovllm::cuda {

template <Measure kMeasure>
__device__ Threshold RowInBlock::keep_fewest(float lowest, double needed) {
  Interval interval{lowest, top_, 0};
  while (true) {
    const int count = collect(interval.lowest, [&](float x, int32_t) {
      return (x >= interval.lowest) & (x <= interval.highest);
    });
    if (count == 0) return {interval.lowest, kAllTies};
    if (count <= kMaxCandidates) return cross_candidates<kMeasure>(count, needed - interval.above);
    if (interval.lowest == interval.highest) {
      return cross_ties<kMeasure>(interval.lowest, needed - interval.above);
    }
    cut<kMeasure>(interval, needed);
  }
}

// Collects and sorts the tokens that are wanted(x, id), of which none is below `lowest`. Returns
// their number, or some number above kMaxCandidates when they are more than that.
template <typename F>
__device__ int RowInBlock::collect(float lowest, F&& wanted) {
  __shared__ int size;
  if (threadIdx.x == 0) size = 0;
  __syncthreads();
  const uint32_t lane_bit = 1u << (threadIdx.x % 32);
  visit(lowest, [&](const int32_t(&id)[kInFlight], const float(&x)[kInFlight][4]) {
    uint32_t takers[kInFlight][4];
    int position = 0;
    int num_taken = 0;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        takers[i][k] = __ballot_sync(0xffffffffu, wanted(x[i][k], id[i] + k));
        num_taken += __popc(takers[i][k]);
      }
    }
    if (num_taken == 0) return true;
    if (threadIdx.x % 32 == 0) position = atomicAdd(&size, num_taken);
    position = __shfl_sync(0xffffffffu, position, 0);
    if (position + num_taken > kMaxCandidates) return false;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((takers[i][k] & lane_bit) != 0) {
          candidates_[position + __popc(takers[i][k] & (lane_bit - 1))] =
              candidate(x[i][k], id[i] + k);
        }
        position += __popc(takers[i][k]);
      }
    }
    return true;
  });
  __syncthreads();
  const int count = size;
  if (count <= kMaxCandidates) sort_candidates(count);
  __syncthreads();
  return count;
}

// Most likely first: few by counting how many are larger than each, many by a bitonic sort.
__device__ inline void RowInBlock::sort_candidates(int count) {
  if (count <= kRowThreads / 2) return sort_few_candidates(count);
  int padded = kRowThreads;
  while (padded < count) padded *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < padded; i += kRowThreads) {
    candidates_[i] = 0;
  }
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < padded / 2; i += kRowThreads) {
        const int a = 2 * i - (i & (stride - 1));
        const int b = a + stride;
        const unsigned long long first = candidates_[a];
        const unsigned long long second = candidates_[b];
        const bool in_order = (first > second) == ((a & size) == 0);
        candidates_[a] = in_order ? first : second;
        candidates_[b] = in_order ? second : first;
      }
      // Pairs up to 32 apart lie within the 64 elements of one warp, and so do the next step's.
      if (stride > 32 || (stride == 1 && size >= 64)) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
}

__device__ inline void RowInBlock::sort_few_candidates(int count) {
  const int i = static_cast<int>(threadIdx.x);
  const unsigned long long mine = i < count ? candidates_[i] : 0;
  int rank = 0;
  if (i < count) {
#pragma unroll 8
    for (int k = 0; k < count; ++k) rank += candidates_[k] > mine ? 1 : 0;
  }
  __syncthreads();
  if (i < count) candidates_[rank] = mine;
  __syncthreads();
}

template <Measure kMeasure>
__device__ Threshold RowInBlock::cross_candidates(int count, double needed) const {
  __shared__ int crossing;
  if (threadIdx.x == 0) crossing = count - 1;
  const int share = (count + kRowThreads - 1) / kRowThreads;
  const int begin = static_cast<int>(threadIdx.x) * share;
  const int end = min(begin + share, count);
  double own = 0;
  for (int i = begin; i < end; ++i) own += measure_of<kMeasure>(candidate_logit(i));
  double total;
  double cumulative = exclusive_sum(own, total);
  for (int i = begin; i < end; ++i) {
    cumulative += measure_of<kMeasure>(candidate_logit(i));
    if (cumulative < needed) continue;
    atomicMin(&crossing, i);
    break;
  }
  __syncthreads();
  const Threshold threshold{candidate_logit(crossing), candidate_id(crossing)};
  __syncthreads();
  return threshold;
}

// More tokens than can be collected are equals of x.
template <Measure kMeasure>
__device__ Threshold RowInBlock::cross_ties(float x, double needed) {
  const double each = measure_of<kMeasure>(x);
  if (each == 0) return {x, kAllTies};
  const double num_needed = max(1.0, ceil(needed / each));
  const auto is_tie = [x](float y, int32_t) { return y == x ? 1.f : 0.f; };
  measure(x, is_tie);
  return {x, find(num_needed - 0.5, is_tie)};
}

// Leaves at most a seventh of the interval, or less than that where it holds but few values.
template <Measure kMeasure>
__device__ void RowInBlock::cut(Interval& interval, double needed) {
  const double lowest = max(interval.lowest, -FLT_MAX);
  const double width = interval.highest - lowest;
  float pivot[kPivots];
  float sum[kPivots] = {};
#pragma unroll
  for (int p = 0; p < kPivots; ++p) {
    const auto value = static_cast<float>(lowest + width * (p + 1) / kPivots);
    pivot[p] = p == kPivots - 1 ? interval.highest : max(value, interval.lowest);
  }
  visit(interval.lowest, [&](const int32_t(&)[kInFlight], const float(&x)[kInFlight][4]) {
#pragma unroll
    for (int i = 0; i < kInFlight * 4; ++i) {
      const float y = x[i / 4][i % 4];
      const float measured = measure_of<kMeasure>(y);
#pragma unroll
      for (int p = 0; p < kPivots; ++p) sum[p] += y >= pivot[p] ? measured : 0.f;
    }
    return true;
  });
  bool found = false;
#pragma unroll
  for (int p = kPivots - 1; p >= 0; --p) {
    double total;
    exclusive_sum(sum[p], total);
    if (found) continue;
    if (total >= needed) {
      interval.lowest = pivot[p];
      found = true;
    } else {
      interval.highest = nextafterf(pivot[p], kMinusInfinity);
      interval.above = total;
    }
  }
}

// Each thread stands for the largest logit of its blocks: the k-th largest of those, found bit by
// bit, is a bound. The upper half of its bits is good enough.
__device__ inline float RowInBlock::bound_of_kth_largest(int k) const {
  if (k > min(num_blocks_, kRowThreads)) return kMinusInfinity;
  uint32_t largest = 0;
  for (int b = threadIdx.x; b < num_blocks_; b += kRowThreads) {
    largest = max(largest, unsigned_key(max_[b]));
  }
  uint32_t bound = 0;
  for (uint32_t bit = kSign; bit >= 1u << 16; bit >>= 1) {
    if (__syncthreads_count(largest >= (bound | bit)) >= k) bound |= bit;
  }
  return max(from_unsigned_key(bound), kMinusInfinity);  // a NaN's key is no bound
}

__device__ inline int RowInBlock::collect_kept(const Threshold& threshold) {
  return collect(threshold.logit, [&](float x, int32_t id) { return threshold.keeps(x, id); });
}

}  // namespace nanovllm::cuda
