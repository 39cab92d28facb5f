#include "backend/cuda/sampling/sampling_slot.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/memory.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

bool is_edited(const SamplingRow& row) {
  return row.forced_id < 0 && (!row.logit_bias.empty() || !row.banned_ids.empty() ||
                               !row.allowed.empty() || has_penalties(row));
}

// An upper bound of num_list_entries of the row's parameters.
size_t max_list_entries(const SamplingRow& row) {
  size_t count = 2 * row.logit_bias.size() + row.banned_ids.size() + 32 * row.allowed.size() + 1;
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

void SamplingSlot::fill(std::span<const SamplingRow> rows, int64_t vocab_size) {
  wait();
  measure(rows);
  auto* const edited_rows = reinterpret_cast<int32_t*>(params_ + num_rows_);
  int32_t* const lists = edited_rows + num_edited_;
  num_edited_ = 0;
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
              .has_penalties = has_penalties(row) ? 1 : 0};
    if (!is_edited(row)) continue;
    edited_rows[num_edited_++] = static_cast<int32_t>(r);
    params.lists_begin = static_cast<int32_t>(num_entries_);
    fill_lists(row, vocab_size, params, lists + num_entries_);
    num_entries_ += cuda::num_list_entries(params);
  }
  rows_size_ = reinterpret_cast<const char*>(lists + num_entries_) - rows_data_;
}

// Finds the sizes and reserves the memory.
void SamplingSlot::measure(std::span<const SamplingRow> rows) {
  num_rows_ = rows.size();
  num_edited_ = 0;
  max_logprobs_ = -1;
  size_t entries = 0;
  for (const SamplingRow& row : rows) {
    max_logprobs_ = std::max(max_logprobs_, row.num_logprobs);
    if (!is_edited(row)) continue;
    ++num_edited_;
    entries += max_list_entries(row);
  }
  NANOVLLM_CHECK(entries < INT32_MAX);
  const size_t rows_bytes =
      num_rows_ * sizeof(RowParams) + (num_edited_ + entries) * sizeof(int32_t);
  rows_data_ = static_cast<char*>(reserve(rows_memory_, rows_bytes));
  params_ = reinterpret_cast<RowParams*>(rows_data_);
  const size_t max_entries = num_rows_ * static_cast<size_t>(max_logprobs_ + 1);
  const size_t results_bytes = 2 * num_rows_ * sizeof(int32_t) + max_entries * sizeof(LogprobEntry);
  void* const results = reserve(results_memory_, results_bytes);
  token_ids_ = static_cast<int32_t*>(results);
  num_logprobs_ = token_ids_ + num_rows_;
  logprobs_ = reinterpret_cast<LogprobEntry*>(num_logprobs_ + num_rows_);
}

void SamplingSlot::fill_lists(const SamplingRow& row, int64_t vocab_size, RowParams& params,
                              int32_t* lists) {
  params.num_biases = fill_biases(row, lists);
  int32_t* const banned = lists + 2 * params.num_biases;
  lists = std::copy(row.banned_ids.begin(), row.banned_ids.end(), banned);
  for (int32_t id = 0; !row.allowed.empty() && id < vocab_size; ++id) {
    if (!is_allowed(row, id)) *lists++ = id;
  }
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

void SamplingSlot::describe(const char* rows_data, SamplingStep& step) const {
  step.params = reinterpret_cast<const RowParams*>(rows_data);
  step.edited_rows = reinterpret_cast<const int32_t*>(step.params + num_rows_);
  step.num_edited = num_edited_;
  step.lists = step.edited_rows + num_edited_;
  step.token_ids = token_ids_;
  step.num_logprobs = num_logprobs_;
  step.logprobs = logprobs_;
  step.logprobs_stride = max_logprobs_ + 1;
}

void SamplingSlot::read(std::span<SamplingResult> results) const {
  NANOVLLM_CHECK(results.size() == num_rows_);
  for (size_t r = 0; r < num_rows_; ++r) {
    results[r].token_id = token_ids_[r];
    results[r].logprobs.clear();
    if (max_logprobs_ < 0) continue;
    const LogprobEntry* const entries = logprobs_ + r * static_cast<size_t>(max_logprobs_ + 1);
    results[r].logprobs.assign(entries, entries + num_logprobs_[r]);
  }
}

}  // namespace nanovllm::cuda
