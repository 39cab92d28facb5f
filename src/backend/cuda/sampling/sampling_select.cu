// A token for each row, from the statistics of its blocks: a thread block a row. A greedy row reads
// the block of its largest logit, a plain draw the block where the cumulative mass crosses u. min_p
// and top_k read the few blocks that reach their thresholds; top_p those that hold what its tokens
// can be among, which is all of a flat row.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sampling/sampling_row_threshold.cuh"
#include "base/philox.h"

namespace nanovllm::cuda {
namespace {

// Weights this many units below the largest are no normal float32.
constexpr float kLowestUnits = 87;

__device__ Threshold find_threshold(RowInBlock& row, const RowParams& params, int64_t vocab_size) {
  const float temperature = params.temperature;
  const float weightless = row.top() - kLowestUnits * temperature;
  Threshold kept;
  if (params.min_p > 0) kept.logit = row.top() + logf(params.min_p) * temperature;
  if (params.top_k > 0 && params.top_k < vocab_size) {
    const float bound = max(row.bound_of_kth_largest(params.top_k), weightless);
    const float kth = row.keep_fewest<Measure::kCount>(bound, params.top_k).logit;
    kept.logit = max(kept.logit, kth);
  }
  if (params.top_p < 1) {
    const double total = kept.logit == kMinusInfinity
                             ? row.total_mass()
                             : row.measure(kept.logit, row.weight_of_kept(kept));
    // Tokens below this weight together have less than what top_p leaves over, so that none of them
    // is kept. Half, for what rounding may add.
    const double unneeded =
        (1 - static_cast<double>(params.top_p)) * total / (2 * static_cast<double>(vocab_size));
    const float lowest = row.top() + static_cast<float>(log(unneeded)) * temperature;
    kept = row.keep_fewest<Measure::kMass>(max(kept.logit, max(lowest, weightless)),
                                           static_cast<double>(params.top_p) * total);
  }
  return kept;
}

__device__ int32_t choose(RowInBlock& row, const RowParams& params, const BlockStats* stats,
                          int64_t vocab_size) {
  const float rate = scan_rate(params);
  if (!row.load_stats(stats, rate)) return -1;
  if (params.forced_id >= 0) return params.forced_id;
  if (rate == 0) return row.first_largest();
  const bool keeps_all =
      params.min_p <= 0 && params.top_p >= 1 && (params.top_k <= 0 || params.top_k >= vocab_size);
  const Threshold kept = keeps_all ? Threshold{} : find_threshold(row, params, vocab_size);
  const auto weight = row.weight_of_kept(kept);
  const double total = keeps_all ? row.total_mass() : row.measure(kept.logit, weight);
  return row.find(philox_uniform(params.seed, params.position) * total, weight);
}

template <bool kMasked>  // whether rows may have masks
__global__ void __launch_bounds__(kRowThreads)
    select_kernel(const __grid_constant__ SamplingStep step, bool vector_aligned) {
  extern __shared__ __align__(16) char shared[];
  __shared__ RowParams params;
  const int64_t r = blockIdx.x;
  load_params(params, step.params + r);
  wait_for_predecessor();
  release_successor();
  const uint32_t* const mask =
      kMasked ? mask_of(step.masks, params.mask, step.num_blocks) : nullptr;
  RowInBlock row(shared, step.logits + r * step.vocab_size, mask, step.vocab_size, step.num_blocks,
                 vector_aligned);
  const int32_t id = choose(row, params, step.stats + r * step.num_blocks, step.vocab_size);
  if (threadIdx.x == 0) step.sampled_ids[r] = step.token_ids[r] = id;
}

}  // namespace

void launch_sampling_select(cudaStream_t stream, const SamplingStep& step) {
  const auto kernel = step.masks == nullptr ? select_kernel<false> : select_kernel<true>;
  launch(stream, kernel, dim3(step.num_rows), dim3(kRowThreads),
         sampling_shared_bytes(step.num_blocks), step,
         is_vector_aligned(step.logits, step.vocab_size));
}

}  // namespace nanovllm::cuda
