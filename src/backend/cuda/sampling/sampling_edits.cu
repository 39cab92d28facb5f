// Biases, bans and penalties, in place, and new statistics for the blocks that they touch. A thread
// block owns a range of ids of one row: it runs over the row's lists, takes the ids that are its
// own, and counts them in shared memory, so that nothing is sorted and no two blocks share a logit.
// Reads each list once for each of the row's V / 8192 ranges (from the L2 cache), and 512 bytes for
// each block of logits that it changes.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sampling/sampling_block.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRange = 8192;  // ids of a thread block
constexpr int kInPrompt = 1 << 30;

struct EditedRange {
  int count[kRange];            // times in the output, plus kInPrompt
  uint32_t saved[kRange / 32];  // bits: the raw value has been put aside
  int dirty[kRange / kSampleBlock];
};

class RowEditor {
 public:
  __device__ RowEditor(EditedRange& range, const SamplingStep& step, int row)
      : range_(range),
        params_(step.params[row]),
        lists_(step.lists + params_.lists_begin),
        raw_logits_(step.raw_logits + params_.lists_begin),
        logits_(step.logits + row * step.vocab_size),
        first_id_(static_cast<int>(blockIdx.x) * kRange),
        num_ids_(static_cast<int>(min(step.vocab_size - first_id_, static_cast<int64_t>(kRange)))) {
  }
  __device__ const RowParams& params() const { return params_; }

  __device__ void clear() {
    for (int i = threadIdx.x; i < kRange; i += kThreads) range_.count[i] = 0;
    for (int i = threadIdx.x; i < kRange / 32; i += kThreads) range_.saved[i] = 0;
    for (int i = threadIdx.x; i < kRange / kSampleBlock; i += kThreads) range_.dirty[i] = 0;
    __syncthreads();
  }

  // Puts the raw value of each logit that will change aside, once. Entries whose id is in no range
  // are the first range's to mark.
  __device__ void save_raw_logits(int64_t vocab_size, int32_t pending_id) {
    for (int i = threadIdx.x; i < num_list_entries(params_); i += kThreads) {
      if (params_.num_biases <= i && i < 2 * params_.num_biases) {
        if (first_id_ == 0) raw_logits_[i].id = -1;  // a bias, no id
        continue;
      }
      const int32_t id = i == num_list_entries(params_) - 1 ? pending_id : lists_[i];
      if (owns(id)) {
        const int offset = id - first_id_;
        const uint32_t bit = 1u << (offset % 32);
        const bool first = (atomicOr(&range_.saved[offset / 32], bit) & bit) == 0;
        raw_logits_[i] = first ? RawLogit{id, logits_[id]} : RawLogit{-1, 0};
      } else if (first_id_ == 0 && (id < 0 || id >= vocab_size)) {
        raw_logits_[i].id = -1;
      }
    }
    __syncthreads();
  }

  __device__ void add_biases() {
    for (int i = threadIdx.x; i < params_.num_biases; i += kThreads) {
      const int32_t id = lists_[i];
      if (owns(id)) set(id, logits_[id] + __int_as_float(lists_[params_.num_biases + i]));
    }
    __syncthreads();
  }

  __device__ void ban() {
    const int32_t* const banned = lists_ + 2 * params_.num_biases;
    for (int i = threadIdx.x; i < params_.num_banned; i += kThreads) {
      if (owns(banned[i])) set(banned[i], kMinusInfinity);
    }
    __syncthreads();
  }

  __device__ void penalise(int32_t pending_id) {
    const int32_t* const prompt = lists_ + 2 * params_.num_biases + params_.num_banned;
    const int32_t* const output = prompt + params_.num_prompt;
    for (int i = threadIdx.x; i < params_.num_prompt; i += kThreads) {
      if (owns(prompt[i])) atomicOr(&range_.count[prompt[i] - first_id_], kInPrompt);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < params_.num_output; i += kThreads) {
      if (owns(output[i])) atomicAdd(&range_.count[output[i] - first_id_], 1);
    }
    if (threadIdx.x == 0 && owns(pending_id)) atomicAdd(&range_.count[pending_id - first_id_], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < params_.num_prompt; i += kThreads) take(prompt[i]);
    for (int i = threadIdx.x; i < params_.num_output; i += kThreads) take(output[i]);
    if (threadIdx.x == 0) take(pending_id);
    __syncthreads();
  }

  // A row that held a NaN or +inf before the edits has no distribution after them either, so such
  // a maximum stays.
  __device__ void rescan(BlockStats* stats, const uint32_t* mask, int64_t vocab_size,
                         int num_blocks, bool vector_aligned) {
    const float rate = scan_rate(params_);
    for (int b = threadIdx.x / 32; b < kRange / kSampleBlock; b += kThreads / 32) {
      if (range_.dirty[b] == 0) continue;
      const int block = first_id_ / kSampleBlock + b;
      float x[1][4];
      load_block(x[0], logits_, block, vocab_size, vector_aligned, kMinusInfinity);
      apply_mask(x, mask, {block}, num_blocks);
      const float top = warp_largest(x[0]);
      const float mass = warp_mass(x[0], top, rate);
      const bool was_good = stats[block].max < -kMinusInfinity;  // false for NaN
      __syncwarp();
      if (threadIdx.x % 32 == 0 && was_good) stats[block] = {top, mass};
    }
  }

 private:
  __device__ bool owns(int32_t id) const {
    return static_cast<uint32_t>(id) - static_cast<uint32_t>(first_id_) <
           static_cast<uint32_t>(num_ids_);
  }
  __device__ void set(int32_t id, float x) {
    logits_[id] = x;
    range_.dirty[(id - first_id_) / kSampleBlock] = 1;
  }
  // The first of a token's occurrences to come here finds the count and applies the penalties.
  __device__ void take(int32_t id) {
    if (!owns(id)) return;
    const int count = atomicExch(&range_.count[id - first_id_], 0);
    if (count == 0) return;
    float x = logits_[id];
    x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
    const int in_output = count & ~kInPrompt;
    x -= params_.frequency_penalty * static_cast<float>(in_output);
    if (in_output > 0) x -= params_.presence_penalty;
    set(id, x);
  }

  EditedRange& range_;
  const RowParams params_;
  const int32_t* const lists_;
  RawLogit* const raw_logits_;
  float* const logits_;
  const int first_id_;
  const int num_ids_;
};

__global__ void __launch_bounds__(kThreads)
    edits_kernel(const __grid_constant__ SamplingStep step, bool vector_aligned) {
  __shared__ EditedRange range;
  const int row = step.edited_rows[blockIdx.y];
  RowEditor editor(range, step, row);
  editor.clear();
  const RowParams& params = editor.params();
  const int32_t pending_from = params.has_penalties != 0 ? params.pending_from : -1;
  const bool keeps_raw = params.num_logprobs >= 0;
  wait_for_predecessor();
  release_successor();
  const int32_t pending_id = pending_from >= 0 ? step.previous_ids[pending_from] : -1;
  if (keeps_raw) editor.save_raw_logits(step.vocab_size, pending_id);
  editor.add_biases();
  editor.ban();
  if (params.has_penalties != 0) editor.penalise(pending_id);
  editor.rescan(step.stats + static_cast<int64_t>(row) * step.num_blocks,
                mask_of(step.masks, params.mask, step.num_blocks), step.vocab_size, step.num_blocks,
                vector_aligned);
}

}  // namespace

void launch_sampling_edits(cudaStream_t stream, const SamplingStep& step) {
  const dim3 grid(div_up(step.vocab_size, kRange), step.num_edited);
  launch(stream, edits_kernel, grid, dim3(kThreads), 0, step,
         is_vector_aligned(step.logits, step.vocab_size));
}

}  // namespace nanovllm::cuda
