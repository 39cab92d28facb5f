// How blocks of prefill attention that share the keys of the same rows merge what each has: each
// leaves its sums, unscaled, in device memory, waits for the others of its rows and finishes some
// of their columns, in the order of the parts. The blocks of a launch that do so are no more than
// multiprocessors, each of which has room for one, and a device places all blocks of a grid before
// any of the next one: so none waits for a block that can't start.
//
// A thread's registers lie side by side with those of its fellows, as [register][thread]: every
// block keeps the same element in the same register of the same thread.
#pragma once

#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/device/bulk_copy.cuh"

namespace nanovllm::cuda {

constexpr int kPartThreads = 256;
constexpr int kMinPartTiles = 4;    // of keys: fewer are not worth a block of their own
constexpr int kMaxPartWords = 132;  // of a thread: 256 / 2 sums, and what softmax knows of two rows

struct PrefillParts {
  int max_count;       // of the keys of some rows
  float* words;        // [jobs][registers][kPartThreads]
  uint32_t* counters;  // [jobs / max_count], ~0 at first and in the end
};

__device__ inline void meet_part_threads() { sync_threads<kPartThreads>(1); }

// A part's words of this thread. Written by one block and read by others.
template <int kDim>
class PartWords {
 public:
  static constexpr int kSums = kDim / 2, kWords = kSums + 4;
  static_assert(kWords <= kMaxPartWords);

  __device__ PartWords(float* words, int64_t job)
      : words_(words + job * kWords * kPartThreads + threadIdx.x) {}

  __device__ float sum(int i) const { return load(i); }
  __device__ float largest(int h) const { return load(kSums + h); }
  __device__ float total(int h) const { return load(kSums + 2 + h); }
  __device__ void store(const float (&sums)[kSums], const SoftmaxRows& rows) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) store(i, sums[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      store(kSums + h, rows.largest[h]);
      store(kSums + 2 + h, rows.total[h]);
    }
  }

 private:
  __device__ float load(int i) const { return __ldcg(words_ + i * kPartThreads); }
  __device__ void store(int i, float x) { __stcg(words_ + i * kPartThreads, x); }

  float* const words_;
};

// The parts of one job's rows, two or more.
template <int kDim>
struct PartGroup {
  float* words;
  uint32_t* counter;
  int first_job, part, count;

  __device__ PartGroup(const PrefillParts& parts, int job, int own, int num_parts)
      : words(parts.words),
        counter(&parts.counters[job / parts.max_count]),
        first_job(job - own),
        part(own),
        count(num_parts) {}

  __device__ PartWords<kDim> words_of(int j) const { return {words, first_job + j}; }

  // By one thread: counts this block, and waits until all have come.
  __device__ void await_all() const {
    __threadfence();
    atomicAdd(counter, 1);
    uint32_t last;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(last) : "l"(counter) : "memory");
    } while (last + 1 < static_cast<uint32_t>(count));
  }
  // By one thread, once the block has read all it wants.
  __device__ void leave() const {
    if (atomicAdd(counter, 1) + 2 == 2 * static_cast<uint32_t>(count)) *counter = ~0u;
  }
  // Calls f(words, exists) for all parts in order, four at once so that their loads overlap.
  template <typename F>
  __device__ void for_each(F&& f) const {
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 4) {
#pragma unroll
      for (int j = begin; j < begin + 4; ++j) f(words_of(min(j, count - 1)), j < count);
    }
  }
};

// What a row's sums at its part's `largest` are worth at that of all parts.
__device__ inline float part_scale(float largest, float all, float factor) {
  return largest == -INFINITY ? 0.f : exp2_approximate((largest - all) * factor);
}

// Finishes, of a warp's columns, every group.count-th tile of 8 from its own part on.
template <int kDim, typename Write>
__device__ void finish_parts(const PartGroup<kDim>& group, const AttentionProblem& p,
                             const int (&heads)[2], Write&& write) {
  const float factor = score_factor(p);
  SoftmaxRows all;
  group.for_each([&](const PartWords<kDim>& words, bool exists) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float largest = exists ? words.largest(h) : -INFINITY, total = words.total(h);
      const float now = fmaxf(all.largest[h], largest);
      all.total[h] = all.total[h] * part_scale(all.largest[h], now, factor) +
                     total * part_scale(largest, now, factor);
      all.largest[h] = now;
    }
  });
  const float factors[2] = {softmax_factor(all, 0, p, heads[0]),
                            softmax_factor(all, 1, p, heads[1])};
  constexpr int kTiles = kDim / 8, kAtOnce = 2;
#pragma unroll 1
  for (int first = group.part; first < kTiles; first += kAtOnce * group.count) {
    float sums[kAtOnce][4] = {};
    group.for_each([&](const PartWords<kDim>& words, bool exists) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float scale = exists ? part_scale(words.largest(h), all.largest[h], factor) : 0.f;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int n = min(first + i * group.count, kTiles - 1);
          sums[i][2 * h] += scale * words.sum(4 * n + 2 * h);
          sums[i][2 * h + 1] += scale * words.sum(4 * n + 2 * h + 1);
        }
      }
    });
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + i * group.count;
      if (n >= kTiles) break;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        write(h, n, sums[i][2 * h] * factors[h], sums[i][2 * h + 1] * factors[h]);
      }
    }
  }
}

// By all of a block's kPartThreads threads, each with its sums `o` and rows, which are of the query
// heads `heads`; `has_rows` of a warp says whether any of its rows exist. Calls write(h, n, low,
// high) for its elements of row h and column tile n, of those that this block finishes.
template <int kDim, typename Write>
__device__ void merge_parts(const PartGroup<kDim>& group, bool has_rows, const float (&o)[kDim / 2],
                            const SoftmaxRows& rows, const AttentionProblem& p,
                            const int (&heads)[2], Write&& write) {
  if (has_rows) group.words_of(group.part).store(o, rows);
  meet_part_threads();
  if (threadIdx.x == 0) group.await_all();
  meet_part_threads();
  if (has_rows) finish_parts<kDim>(group, p, heads, write);
  meet_part_threads();
  if (threadIdx.x == 0) group.leave();
}

}  // namespace nanovllm::cuda
