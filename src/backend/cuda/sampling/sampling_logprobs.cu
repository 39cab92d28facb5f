// Log-probabilities of the raw logits: of the chosen token with its rank, and of the most likely
// ones. A thread block a row; edited logits get their raw values back first. Reads the blocks that
// reach the chosen token's logit (few, but for unlikely tokens of a prompt) and those that reach
// the last of the most likely ones.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sampling/sampling_row_threshold.cuh"

namespace nanovllm::cuda {
namespace {

__device__ void restore_raw_logits(const SamplingStep& step, const RowParams& params,
                                   float* logits) {
  const RawLogit* const raw = step.raw_logits + params.lists_begin;
  for (int i = threadIdx.x; i < num_list_entries(params); i += kRowThreads) {
    if (raw[i].id >= 0) logits[raw[i].id] = raw[i].value;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kRowThreads)
    logprobs_kernel(const __grid_constant__ SamplingStep step, bool vector_aligned) {
  extern __shared__ __align__(16) char shared[];
  const int64_t r = blockIdx.x;
  __shared__ RowParams params;
  load_params(params, step.params + r);
  wait_for_predecessor();
  release_successor();
  const int32_t chosen = step.sampled_ids[r];
  if (params.num_logprobs < 0 || chosen < 0) {
    if (threadIdx.x == 0) step.num_logprobs[r] = 0;
    return;
  }
  float* const logits = step.logits + r * step.vocab_size;
  if (params.lists_begin >= 0) restore_raw_logits(step, params, logits);
  RowInBlock row(shared, logits, nullptr, step.vocab_size, step.num_blocks, vector_aligned);
  row.load_stats(step.raw_stats + r * step.num_blocks, kLog2E);
  const double log_total = row.top() + log(row.total_mass());
  const float x = row.logit(chosen);
  const double num_before = row.measure(
      x, [&](float y, int32_t id) { return (y > x) | ((y == x) & (id < chosen)) ? 1.f : 0.f; });
  const int rank = static_cast<int>(num_before) + 1;
  LogprobEntry* const entries = step.logprobs + r * step.logprobs_stride;
  const int num_top =
      static_cast<int>(min(static_cast<int64_t>(params.num_logprobs), step.vocab_size));
  if (threadIdx.x == 0) {
    entries[0] = {chosen, static_cast<float>(x - log_total), rank};
    step.num_logprobs[r] = 1 + num_top - (rank <= num_top ? 1 : 0);
  }
  if (num_top == 0) return;
  row.collect_kept(row.keep_fewest<Measure::kCount>(row.bound_of_kth_largest(num_top), num_top));
  const int i = static_cast<int>(threadIdx.x);
  if (i >= num_top || i + 1 == rank) return;
  entries[i + 1 < rank ? i + 1 : i] = {
      row.candidate_id(i), static_cast<float>(row.candidate_logit(i) - log_total), i + 1};
}

}  // namespace

void launch_sampling_logprobs(cudaStream_t stream, const SamplingStep& step) {
  launch(stream, logprobs_kernel, dim3(step.num_rows), dim3(kRowThreads),
         sampling_shared_bytes(step.num_blocks), step,
         is_vector_aligned(step.logits, step.vocab_size));
}

}  // namespace nanovllm::cuda
