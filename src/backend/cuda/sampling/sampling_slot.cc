#include "backend/cuda/sampling/sampling_slot.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/memory.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

bool is_edited(const SamplingRow& row) {
  return row.forced_id < 0 &&
         (!row.logit_bias.empty() || !row.banned_ids.empty() || has_penalties(row));
}
bool is_masked(const SamplingRow& row) { return row.forced_id < 0 && !row.allowed.empty(); }

// An upper bound of num_list_entries of the row's parameters.
size_t max_list_entries(const SamplingRow& row) {
  size_t count = 2 * row.logit_bias.size() + row.banned_ids.size() + 1;
  if (has_penalties(row)) count += row.prompt_ids.size() + row.output_ids.size();
  return count;
}

// At least so many bytes; what they held is lost when they grow.
void* reserve(std::unique_ptr<Buffer>& memory, size_t bytes) {
  if (memory == nullptr || memory->bytes() < bytes) {
    memory.reset();
    memory = std::make_unique<PinnedBuffer>(2 * bytes);
  }
  return memory->data();
}

}  // namespace

SamplingSlot::SamplingSlot() {
  NANOVLLM_CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
}

SamplingSlot::~SamplingSlot() {
  if (in_flight_) cudaEventSynchronize(done_);
  cudaEventDestroy(done_);
}

void SamplingSlot::record(cudaStream_t stream) {
  NANOVLLM_CUDA_CHECK(cudaEventRecord(done_, stream));
  in_flight_ = true;
}

void SamplingSlot::wait() {
  if (!in_flight_) return;
  NANOVLLM_CUDA_CHECK(cudaEventSynchronize(done_));
  in_flight_ = false;
}

void SamplingSlot::fill(std::span<const SamplingRow> rows, int64_t vocab_size, MaskTable& masks) {
  wait();
  step_ = {};
  step_.vocab_size = vocab_size;
  step_.num_blocks = static_cast<int>((vocab_size + kSampleBlock - 1) / kSampleBlock);
  measure(rows, masks);
  auto* edited_row = reinterpret_cast<int32_t*>(params_ + num_rows());
  int32_t* const lists = edited_row + step_.num_edited;
  num_entries_ = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const SamplingRow& row = rows[r];
    NANOVLLM_CHECK(row.forced_id < vocab_size && row.num_logprobs <= kMaxLogprobs);
    RowParams& params = params_[r];
    params = {.seed = row.seed,
              .position = row.position,
              .temperature = row.temperature,
              .top_p = row.top_p,
              .min_p = row.min_p,
              .top_k = row.top_k,
              .repetition_penalty = row.repetition_penalty,
              .presence_penalty = row.presence_penalty,
              .frequency_penalty = row.frequency_penalty,
              .forced_id = row.forced_id,
              .num_logprobs = row.num_logprobs,
              .pending_from = row.pending_from,
              .lists_begin = -1,
              .num_biases = 0,
              .num_banned = 0,
              .num_prompt = 0,
              .num_output = 0,
              .has_penalties = has_penalties(row) ? 1 : 0,
              .mask = is_masked(row) ? place_mask(row, masks) : -1};
    if (!is_edited(row)) continue;
    *edited_row++ = static_cast<int32_t>(r);
    params.lists_begin = static_cast<int32_t>(num_entries_);
    fill_lists(row, params, lists + num_entries_);
    num_entries_ += cuda::num_list_entries(params);
  }
  rows_size_ = reinterpret_cast<const char*>(lists + num_entries_) - rows_data_;
  masks.end_step();
}

// Finds the sizes and reserves the memory, so that nothing fails once masks have places.
void SamplingSlot::measure(std::span<const SamplingRow> rows, MaskTable& masks) {
  step_.num_rows = static_cast<int>(rows.size());
  size_t entries = 0;
  size_t num_masks = 0;
  for (const SamplingRow& row : rows) {
    step_.logprobs_stride = std::max(step_.logprobs_stride, row.num_logprobs + 1);
    if (is_masked(row)) ++num_masks;
    if (!is_edited(row)) continue;
    ++step_.num_edited;
    entries += max_list_entries(row);
  }
  NANOVLLM_CHECK(entries < INT32_MAX);
  const size_t rows_bytes =
      num_rows() * sizeof(RowParams) + (step_.num_edited + entries) * sizeof(int32_t);
  rows_data_ = static_cast<char*>(reserve(rows_memory_, rows_bytes));
  params_ = reinterpret_cast<RowParams*>(rows_data_);
  const size_t max_entries = num_rows() * static_cast<size_t>(step_.logprobs_stride);
  const size_t results_bytes =
      2 * num_rows() * sizeof(int32_t) + max_entries * sizeof(LogprobEntry);
  void* const results = reserve(results_memory_, results_bytes);
  step_.token_ids = static_cast<int32_t*>(results);
  step_.num_logprobs = step_.token_ids + num_rows();
  step_.logprobs = reinterpret_cast<LogprobEntry*>(step_.num_logprobs + num_rows());
  mask_upload_ = {};
  if (num_masks == 0) return;
  const size_t words = num_masks * mask_words();
  mask_words_ =
      static_cast<uint32_t*>(reserve(masks_memory_, (words + num_masks) * sizeof(uint32_t)));
  mask_places_ = reinterpret_cast<int32_t*>(mask_words_ + words);
  mask_upload_ = {mask_words_, mask_places_, 0};
  step_.masks = masks.begin_step(num_masks, mask_words());
}

// The place of the row's mask in the table; lays the mask out where the table does not have it.
int32_t SamplingSlot::place_mask(const SamplingRow& row, MaskTable& masks) {
  const auto [place, is_new] = masks.place(row.allowed_key);
  if (!is_new) return place;
  const int64_t vocab_size = step_.vocab_size;
  const auto num_words = static_cast<size_t>((vocab_size + 31) / 32);
  NANOVLLM_CHECK(row.allowed.size() >= num_words);
  uint32_t* const words = mask_words_ + mask_upload_.count * mask_words();
  std::copy_n(row.allowed.begin(), num_words, words);
  if (vocab_size % 32 != 0) words[num_words - 1] |= ~0u << (vocab_size % 32);
  std::fill(words + num_words, words + mask_words(), ~0u);
  mask_places_[mask_upload_.count++] = place;
  return place;
}

void SamplingSlot::fill_lists(const SamplingRow& row, RowParams& params, int32_t* lists) {
  params.num_biases = fill_biases(row, lists);
  int32_t* const banned = lists + 2 * params.num_biases;
  lists = std::copy(row.banned_ids.begin(), row.banned_ids.end(), banned);
  params.num_banned = static_cast<int32_t>(lists - banned);
  if (params.has_penalties == 0) return;
  if (row.repetition_penalty != 1) {  // the only one that looks at the prompt
    lists = std::copy(row.prompt_ids.begin(), row.prompt_ids.end(), lists);
    params.num_prompt = static_cast<int32_t>(row.prompt_ids.size());
  }
  std::copy(row.output_ids.begin(), row.output_ids.end(), lists);
  params.num_output = static_cast<int32_t>(row.output_ids.size());
}

// Each id once, because the device adds biases in no order. Returns the number of ids.
int SamplingSlot::fill_biases(const SamplingRow& row, int32_t* lists) {
  biases_.assign(row.logit_bias.begin(), row.logit_bias.end());
  std::stable_sort(biases_.begin(), biases_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  auto end = biases_.begin();
  for (const auto& [id, bias] : biases_) {
    if (end != biases_.begin() && (end - 1)->first == id) {
      (end - 1)->second += bias;
    } else {
      *end++ = {id, bias};
    }
  }
  const auto count = static_cast<int>(end - biases_.begin());
  for (int i = 0; i < count; ++i) {
    lists[i] = biases_[i].first;
    lists[count + i] = std::bit_cast<int32_t>(biases_[i].second);
  }
  return count;
}

void SamplingSlot::place_rows(const char* rows_data) {
  step_.params = reinterpret_cast<const RowParams*>(rows_data);
  step_.edited_rows = reinterpret_cast<const int32_t*>(step_.params + num_rows());
  step_.lists = step_.edited_rows + step_.num_edited;
}

void SamplingSlot::read(std::span<SamplingResult> results) const {
  NANOVLLM_CHECK(results.size() == num_rows());
  for (size_t r = 0; r < num_rows(); ++r) {
    results[r].token_id = step_.token_ids[r];
    results[r].logprobs.clear();
    if (step_.logprobs_stride == 0) continue;
    const LogprobEntry* const entries =
        step_.logprobs + r * static_cast<size_t>(step_.logprobs_stride);
    results[r].logprobs.assign(entries, entries + step_.num_logprobs[r]);
  }
}

}  // namespace nanovllm::cuda
