#include "runner/step_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

// Arrays begin at multiples of 64 bytes.
constexpr size_t kAlignment = 16;

size_t aligned(size_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

// The positions p whose logits score a prompt token: p is new and p + 1 is asked for.
std::pair<int, int> scored_positions(const SequenceInput& sequence) {
  const int end_new = sequence.num_computed_tokens + sequence.num_new_tokens;
  const int begin = std::max(sequence.num_computed_tokens, sequence.prompt_logprobs_begin - 1);
  const int end = std::min(end_new, sequence.prompt_logprobs_end - 1);
  return {begin, std::max(begin, end)};
}

}  // namespace

size_t StepBatch::staging_size(int max_num_tokens, int max_num_seqs, int max_model_len,
                               int block_size, int num_groups) {
  const size_t num_tokens = max_num_tokens, num_seqs = max_num_seqs;
  const size_t num_blocks = (max_model_len + block_size - 1) / block_size;
  return 3 * aligned(num_tokens) + aligned(num_seqs + 1) + 5 * aligned(num_seqs) +
         aligned(num_groups * num_tokens) + aligned(num_groups * num_seqs * num_blocks);
}

void StepBatch::build(const StepInput& input) {
  measure(input);
  place_arrays();
  result_counts_.clear();
  num_draws_ = 0;
  int first_token = 0;
  for (size_t s = 0; s < input.sequences.size(); ++s) {
    const SequenceInput& sequence = input.sequences[s];
    add_sequence(sequence, static_cast<int>(s), first_token);
    add_draws(sequence, first_token);
    first_token += sequence.num_new_tokens;
  }
  if (decode_shape_) add_padding(first_token);
  sampling_rows_.assign(num_draws_, {});
  first_token = 0;
  for (const SequenceInput& sequence : input.sequences) {
    add_prompt_logprobs(sequence, first_token);
    first_token += sequence.num_new_tokens;
  }
  staging_[layout_.query_start_loc + sizes_.num_seqs] = sizes_.num_tokens;
}

void StepBatch::measure(const StepInput& input) {
  sizes_ = {};
  sizes_.num_groups = num_groups_;
  sizes_.num_seqs = static_cast<int>(input.sequences.size());
  bool all_sample = true;
  for (const SequenceInput& sequence : input.sequences) {
    const int seq_len = sequence.num_computed_tokens + sequence.num_new_tokens;
    const int num_drafts = static_cast<int>(sequence.draft_token_ids.size());
    const int num_known = seq_len - num_drafts - (sequence.pending_from >= 0 ? 1 : 0);
    const int num_blocks = (seq_len + block_size_ - 1) / block_size_;
    NANOVLLM_CHECK(sequence.num_new_tokens > num_drafts);
    NANOVLLM_CHECK(sequence.token_ids.size() >= static_cast<size_t>(num_known));
    NANOVLLM_CHECK(std::ssize(sequence.block_table) >= int64_t{num_blocks} * num_groups_);
    // Decodes are what the batch begins with: one new token after a prefill is a prefill of one.
    if (sequence.num_new_tokens == 1 && sizes_.num_decodes == sizes_.num_tokens) {
      ++sizes_.num_decodes;
    }
    sizes_.num_tokens += sequence.num_new_tokens;
    sizes_.max_query_len = std::max(sizes_.max_query_len, sequence.num_new_tokens);
    sizes_.max_seq_len = std::max(sizes_.max_seq_len, seq_len);
    sizes_.block_table_stride = std::max(sizes_.block_table_stride, num_blocks);
    const auto [begin, end] = scored_positions(sequence);
    sizes_.num_logits += end - begin + (sequence.sample ? 1 + num_drafts : 0);
    all_sample = all_sample && sequence.sample && begin == end;
  }
  decode_shape_.reset();
  if (all_sample && sizes_.num_decodes == sizes_.num_seqs) {
    decode_shape_ = buckets_.find(sizes_.num_seqs, sizes_.block_table_stride);
  }
  if (!decode_shape_) return;
  sizes_.num_tokens = sizes_.num_seqs = sizes_.num_decodes = sizes_.num_logits =
      decode_shape_->num_seqs;
  sizes_.block_table_stride = decode_shape_->block_table_stride;
  sizes_.max_seq_len = decode_shape_->max_seq_len;
}

void StepBatch::place_arrays() {
  size_t size = 0;
  const auto place = [&](size_t& offset, size_t count) {
    offset = size;
    size += aligned(count);
  };
  const size_t num_tokens = sizes_.num_tokens;
  const size_t num_seqs = sizes_.num_seqs;
  place(layout_.token_ids, num_tokens);
  place(layout_.positions, num_tokens);
  place(layout_.slot_mapping, num_groups_ * num_tokens);
  place(layout_.query_start_loc, num_seqs + 1);
  place(layout_.seq_lens, num_seqs);
  place(layout_.block_table, num_groups_ * num_seqs * sizes_.block_table_stride);
  place(layout_.state_slot, num_seqs);
  place(layout_.state_len, num_seqs);
  place(layout_.next_slot, num_seqs);
  place(layout_.log_slot, num_seqs);
  place(layout_.logits_rows, sizes_.num_logits);
  NANOVLLM_CHECK(size <= staging_.size());
  staging_size_ = size;
}

void StepBatch::add_sequence(const SequenceInput& sequence, int index, int first_token) {
  const int begin = sequence.num_computed_tokens;
  const int seq_len = begin + sequence.num_new_tokens;
  int32_t* const token_ids = &staging_[layout_.token_ids + first_token];
  int32_t* const positions = &staging_[layout_.positions + first_token];
  const auto known = sequence.token_ids.subspan(begin);
  const int pending_from = sequence.pending_from;
  const auto& drafts = sequence.draft_token_ids;
  const auto num_known = sequence.num_new_tokens - std::ssize(drafts) - (pending_from >= 0 ? 1 : 0);
  std::copy_n(known.begin(), num_known, token_ids);
  if (pending_from >= 0) token_ids[num_known] = -1 - pending_from;
  std::copy(drafts.begin(), drafts.end(), token_ids + num_known);
  std::iota(positions, positions + sequence.num_new_tokens, begin);
  staging_[layout_.query_start_loc + index] = first_token;
  staging_[layout_.seq_lens + index] = seq_len;
  staging_[layout_.state_slot + index] = sequence.states.slot;
  staging_[layout_.state_len + index] = sequence.states.len;
  staging_[layout_.next_slot + index] = sequence.states.next;
  staging_[layout_.log_slot + index] = sequence.states.log;
  add_blocks(sequence, index, first_token);
}

void StepBatch::add_blocks(const SequenceInput& sequence, int index, int first_token) {
  const int begin = sequence.num_computed_tokens, end = begin + sequence.num_new_tokens;
  const int num_blocks = (end + block_size_ - 1) / block_size_;
  const auto stride = static_cast<size_t>(sizes_.block_table_stride);
  for (int group = 0; group < num_groups_; ++group) {
    const int32_t* const blocks = &sequence.block_table[group];
    int32_t* slots = &staging_[layout_.slot_mapping + group * sizes_.num_tokens + first_token];
    for (int position = begin; position < end; ++position) {
      const int32_t block = blocks[position / block_size_ * num_groups_];
      *slots++ =
          position < sequence.kv_write_begin ? -1 : block * block_size_ + position % block_size_;
    }
    const size_t row = static_cast<size_t>(group) * sizes_.num_seqs + index;
    const auto table = staging_.begin() + static_cast<int64_t>(layout_.block_table + row * stride);
    const auto not_negative = [](int32_t block) { return std::max(0, block); };
    if (num_groups_ == 1) {  // vectorised
      std::transform(blocks, blocks + num_blocks, table, not_negative);
    } else {
      for (int i = 0; i < num_blocks; ++i) table[i] = not_negative(blocks[i * num_groups_]);
    }
    std::fill(table + num_blocks, table + static_cast<int64_t>(stride), 0);
  }
}

void StepBatch::add_draws(const SequenceInput& sequence, int first_token) {
  const int num_draws = sequence.sample ? 1 + static_cast<int>(sequence.draft_token_ids.size()) : 0;
  const int token = first_token + sequence.num_new_tokens - num_draws;
  const auto [begin, end] = scored_positions(sequence);
  result_counts_.push_back({num_draws, end - begin, token + 1});
  for (int i = 0; i < num_draws; ++i) {
    staging_[layout_.logits_rows + num_draws_++] = token + i;
  }
}

void StepBatch::add_prompt_logprobs(const SequenceInput& sequence, int first_token) {
  const auto [begin, end] = scored_positions(sequence);
  for (int position = begin; position < end; ++position) {
    staging_[layout_.logits_rows + sampling_rows_.size()] =
        first_token + position - sequence.num_computed_tokens;
    SamplingRow& row = sampling_rows_.emplace_back();
    row.forced_id = sequence.token_ids[position + 1];
    row.num_logprobs = sequence.num_prompt_logprobs;
  }
}

void StepBatch::set_draws(std::span<const SamplingRow> rows) {
  NANOVLLM_CHECK(std::ssize(rows) == num_draws_);
  std::ranges::copy(rows, sampling_rows_.begin());
}

void StepBatch::add_padding(int first) {
  const int count = sizes_.num_seqs - first;
  const auto rest_of = [&](size_t offset) { return staging_.begin() + offset + first; };
  std::fill_n(rest_of(layout_.token_ids), count, 0);
  std::fill_n(rest_of(layout_.positions), count, 0);
  for (int group = 0; group < num_groups_; ++group) {
    std::fill_n(rest_of(layout_.slot_mapping + group * sizes_.num_tokens), count, -1);
  }
  for (const size_t zeros : {layout_.seq_lens, layout_.state_len}) {
    std::fill_n(rest_of(zeros), count, 0);
  }
  for (const size_t slots : {layout_.state_slot, layout_.next_slot, layout_.log_slot}) {
    std::fill_n(rest_of(slots), count, -1);
  }
  std::iota(rest_of(layout_.query_start_loc), rest_of(layout_.query_start_loc) + count, first);
  std::iota(rest_of(layout_.logits_rows), rest_of(layout_.logits_rows) + count, first);
  const auto stride = static_cast<size_t>(sizes_.block_table_stride);
  for (int group = 0; group < num_groups_; ++group) {
    const size_t row = static_cast<size_t>(group) * sizes_.num_seqs + first;
    std::fill_n(staging_.begin() + layout_.block_table + row * stride, count * stride, 0);
  }
}

ForwardBatch StepBatch::forward_batch(const int32_t* staging) const {
  ForwardBatch batch = sizes_;
  batch.token_ids = staging + layout_.token_ids;
  batch.positions = staging + layout_.positions;
  batch.slot_mapping = staging + layout_.slot_mapping;
  batch.query_start_loc = staging + layout_.query_start_loc;
  batch.seq_lens = staging + layout_.seq_lens;
  batch.block_table = staging + layout_.block_table;
  batch.state_slot = staging + layout_.state_slot;
  batch.state_len = staging + layout_.state_len;
  batch.next_slot = staging + layout_.next_slot;
  batch.log_slot = staging + layout_.log_slot;
  batch.logits_rows = staging + layout_.logits_rows;
  return batch;
}

void StepBatch::split_results(StepOutput& output) const {
  output.sequences.resize(result_counts_.size());
  std::span<const SamplingResult> rest = output.results;
  const auto take = [&](int count) {
    const auto taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  for (size_t s = 0; s < result_counts_.size(); ++s) {
    const auto draws = take(result_counts_[s].num_draws);
    const auto drafts = staging_.subspan(layout_.token_ids + result_counts_[s].first_draft);
    size_t count = std::min<size_t>(draws.size(), 1);
    while (count > 0 && count < draws.size() && draws[count - 1].token_id == drafts[count - 1]) {
      ++count;
    }
    output.sequences[s].sampled = draws.first(count);
  }
  for (size_t s = 0; s < result_counts_.size(); ++s) {
    output.sequences[s].prompt_logprobs = take(result_counts_[s].num_prompt_logprobs);
  }
}

}  // namespace nanovllm
