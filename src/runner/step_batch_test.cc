#include "runner/step_batch.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

Ids counting_ids(int n, int first) {
  Ids ids(n);
  for (int i = 0; i < n; ++i) ids[i] = first + i;
  return ids;
}

Ids array(const int32_t* begin, int64_t count) { return {begin, begin + count}; }

// Two decodes and a chunk of a prompt, in blocks of 16.
class StepBatchTest : public ::testing::Test {
 protected:
  StepBatchTest() {
    input_.sequences.resize(3);
    input_.sequences[0] = {.token_ids = first_,
                           .num_computed_tokens = 19,
                           .num_new_tokens = 1,
                           .block_table = first_blocks_,
                           .sample = true};
    input_.sequences[1] = {.token_ids = second_,
                           .num_computed_tokens = 2,
                           .num_new_tokens = 1,
                           .block_table = second_blocks_,
                           .sample = true};
    input_.sequences[2] = {.token_ids = third_,
                           .num_computed_tokens = 14,
                           .num_new_tokens = 4,
                           .block_table = third_blocks_};
  }

  // What the sequences are given of results with these ids.
  StepOutput shared_out(const Ids& ids) const {
    StepOutput output;
    for (const int32_t id : ids) output.results.push_back({.token_id = id, .logprobs = {}});
    batch_.split_results(output);
    return output;
  }
  static Ids ids_of(std::span<const SamplingResult> results) {
    Ids ids;
    for (const SamplingResult& result : results) ids.push_back(result.token_id);
    return ids;
  }

  Ids first_ = counting_ids(20, 100);
  Ids second_ = counting_ids(3, 200);
  Ids third_ = counting_ids(40, 300);
  Ids first_blocks_ = {7, 3};
  Ids second_blocks_ = {5};
  Ids third_blocks_ = {9, 1, 4};  // one more than the chunk reaches
  StepInput input_;
  std::vector<int32_t> memory_ = Ids(StepBatch::staging_size(64, 8, 64, 16), 12345);
  StepBatch batch_{16, {}, memory_};
};

TEST_F(StepBatchTest, ArraysFollowTheSequences) {
  batch_.build(input_);
  const ForwardBatch b = batch_.forward_batch(batch_.staging().data());
  EXPECT_EQ(b.num_tokens, 6);
  EXPECT_EQ(b.num_seqs, 3);
  EXPECT_EQ(b.num_decodes, 2);
  EXPECT_EQ(b.num_logits, 2);
  EXPECT_EQ(b.max_query_len, 4);
  EXPECT_EQ(b.max_seq_len, 20);
  EXPECT_EQ(b.block_table_stride, 2);
  EXPECT_EQ(array(b.token_ids, 6), (Ids{119, 202, 314, 315, 316, 317}));
  EXPECT_EQ(array(b.positions, 6), (Ids{19, 2, 14, 15, 16, 17}));
  EXPECT_EQ(array(b.slot_mapping, 6),
            (Ids{3 * 16 + 3, 5 * 16 + 2, 9 * 16 + 14, 9 * 16 + 15, 1 * 16 + 0, 1 * 16 + 1}));
  EXPECT_EQ(array(b.query_start_loc, 4), (Ids{0, 1, 2, 6}));
  EXPECT_EQ(array(b.seq_lens, 3), (Ids{20, 3, 18}));
  EXPECT_EQ(array(b.block_table, 6), (Ids{7, 3, 5, 0, 9, 1}));
  EXPECT_EQ(array(b.logits_rows, 2), (Ids{0, 1}));
}

TEST_F(StepBatchTest, EachGroupOfLayersHasItsBlocks) {
  const Ids first_blocks = {7, -1, 3, 8}, second_blocks = {5, 6}, third_blocks = {9, 2, 1, 4};
  const std::vector<int32_t>* const tables[] = {&first_blocks, &second_blocks, &third_blocks};
  for (int i = 0; i < 3; ++i) input_.sequences[i].block_table = *tables[i];
  Ids memory(StepBatch::staging_size(64, 8, 64, 16, 2), 12345);
  StepBatch batch(16, DecodeBuckets(4, 64, 16), memory, 2);
  batch.build(input_);
  const ForwardBatch b = batch.forward_batch(batch.staging().data());
  const ForwardBatch one = b.of_group(0), other = b.of_group(1);
  EXPECT_EQ(b.num_groups, 2);
  EXPECT_EQ(array(one.block_table, 6), (Ids{7, 3, 5, 0, 9, 1}));
  EXPECT_EQ(array(other.block_table, 6), (Ids{0, 8, 6, 0, 2, 4}));
  EXPECT_EQ(array(one.slot_mapping, 6),
            (Ids{3 * 16 + 3, 5 * 16 + 2, 9 * 16 + 14, 9 * 16 + 15, 1 * 16 + 0, 1 * 16 + 1}));
  EXPECT_EQ(array(other.slot_mapping, 6),
            (Ids{8 * 16 + 3, 6 * 16 + 2, 2 * 16 + 14, 2 * 16 + 15, 4 * 16 + 0, 4 * 16 + 1}));
  EXPECT_EQ(array(other.seq_lens, 3), array(b.seq_lens, 3));

  input_.sequences.resize(2);  // a step of decodes, padded to another number of sequences
  input_.sequences.push_back(input_.sequences[1]);
  batch.build(input_);
  const ForwardBatch padded = batch.forward_batch(batch.staging().data()).of_group(1);
  ASSERT_EQ(padded.num_seqs, 4);
  const int stride = padded.block_table_stride;
  EXPECT_EQ(array(padded.slot_mapping, 4), (Ids{8 * 16 + 3, 6 * 16 + 2, 6 * 16 + 2, -1}));
  EXPECT_EQ(array(padded.block_table + 3 * stride, stride), Ids(stride, 0));
  EXPECT_EQ(array(padded.block_table, 2), (Ids{0, 8}));
}

TEST_F(StepBatchTest, ASingleTokenBehindAPrefillIsNoDecode) {
  std::swap(input_.sequences[1], input_.sequences[2]);
  batch_.build(input_);
  EXPECT_EQ(batch_.forward_batch(batch_.staging().data()).num_decodes, 1);
}

TEST_F(StepBatchTest, SharedBlocksAreNotWrittenAgain) {
  input_.sequences[2].kv_write_begin = 16;
  batch_.build(input_);
  const ForwardBatch b = batch_.forward_batch(batch_.staging().data());
  EXPECT_EQ(array(b.slot_mapping + 2, 4), (Ids{-1, -1, 1 * 16 + 0, 1 * 16 + 1}));
}

TEST_F(StepBatchTest, PromptLogprobsAreScoredWhereTheNextTokenIsAskedFor) {
  SequenceInput& sequence = input_.sequences[2];  // computes positions 14 to 17
  sequence.num_prompt_logprobs = 3;
  const auto scored = [&](int begin, int end) {
    sequence.prompt_logprobs_begin = begin;
    sequence.prompt_logprobs_end = end;
    batch_.build(input_);
    Ids forced;
    for (const SamplingRow& row : batch_.sampling_rows().subspan(2)) {
      EXPECT_EQ(row.num_logprobs, 3);
      forced.push_back(row.forced_id);
    }
    const ForwardBatch b = batch_.forward_batch(batch_.staging().data());
    EXPECT_EQ(b.num_logits, 2 + static_cast<int>(forced.size()));
    // The token after row r of the chunk is the one that row r scores.
    for (size_t i = 0; i < forced.size(); ++i) {
      EXPECT_EQ(b.token_ids[b.logits_rows[2 + i]] + 1, forced[i]);
    }
    return forced;
  };
  EXPECT_EQ(scored(1, 40), (Ids{315, 316, 317, 318}));
  EXPECT_EQ(scored(15, 19), (Ids{315, 316, 317, 318}));
  EXPECT_EQ(scored(16, 18), (Ids{316, 317}));
  EXPECT_EQ(scored(1, 15), (Ids{}));
  EXPECT_EQ(scored(1, 16), (Ids{315}));
  EXPECT_EQ(scored(18, 40), (Ids{318}));
  EXPECT_EQ(scored(19, 40), (Ids{}));
  EXPECT_EQ(scored(0, 0), (Ids{}));
}

TEST_F(StepBatchTest, ResultsGoBackToTheirSequences) {
  input_.sequences[1].sample = false;
  input_.sequences[2].prompt_logprobs_begin = 1;
  input_.sequences[2].prompt_logprobs_end = 17;
  input_.sequences[2].sample = true;
  batch_.build(input_);
  ASSERT_EQ(batch_.sampling_rows().size(), 4U);
  const StepOutput output = shared_out({0, 1, 2, 3});
  ASSERT_EQ(output.sequences.size(), 3U);
  EXPECT_EQ(ids_of(output.sequences[0].sampled), (Ids{0}));
  EXPECT_EQ(ids_of(output.sequences[0].prompt_logprobs), (Ids{}));
  EXPECT_EQ(ids_of(output.sequences[1].sampled), (Ids{}));
  EXPECT_EQ(ids_of(output.sequences[2].sampled), (Ids{1}));
  EXPECT_EQ(ids_of(output.sequences[2].prompt_logprobs), (Ids{2, 3}));
}

TEST_F(StepBatchTest, EqualSizesHaveEqualAddressesInOneCopy) {
  batch_.build(input_);
  const auto size = batch_.staging().size();
  const ForwardBatch before = batch_.forward_batch(nullptr);
  StepInput other = input_;
  other.sequences[0].num_computed_tokens = 17;
  other.sequences[1].num_computed_tokens = 0;
  batch_.build(other);
  const ForwardBatch after = batch_.forward_batch(nullptr);
  EXPECT_EQ(batch_.staging().size(), size);
  EXPECT_EQ(after.positions, before.positions);
  EXPECT_EQ(after.block_table, before.block_table);
  EXPECT_EQ(after.logits_rows, before.logits_rows);
  EXPECT_LT(after.logits_rows, before.token_ids + size);
}

TEST_F(StepBatchTest, TheLargestStepFitsItsStagingArea) {
  StepInput input;
  const Ids ids = counting_ids(64, 0), blocks = {0, 1, 2, 3};
  for (int s = 0; s < 8; ++s) {
    input.sequences.push_back({.token_ids = ids,
                               .num_computed_tokens = 56,
                               .num_new_tokens = 8,
                               .block_table = blocks,
                               .sample = true,
                               .prompt_logprobs_begin = 1,
                               .prompt_logprobs_end = 64});
  }
  batch_.build(input);
  EXPECT_EQ(batch_.forward_batch(nullptr).num_logits, 64);
  EXPECT_EQ(batch_.staging().size(), memory_.size());
}

// A step of only decodes, and buckets that hold it.
class PaddedStepBatchTest : public StepBatchTest {
 protected:
  PaddedStepBatchTest() { input_.sequences.pop_back(); }

  StepBatch padded_{16, DecodeBuckets(8, 64, 16), memory_};
};

TEST_F(PaddedStepBatchTest, DecodesAreFollowedBySequencesWithoutContext) {
  const Ids ids = counting_ids(10, 400), blocks = {2};
  input_.sequences.push_back({.token_ids = ids,
                              .num_computed_tokens = 9,
                              .num_new_tokens = 1,
                              .block_table = blocks,
                              .sample = true});
  padded_.build(input_);
  ASSERT_TRUE(padded_.decode_shape());
  EXPECT_EQ(padded_.decode_shape()->num_seqs, 4);
  const ForwardBatch b = padded_.forward_batch(padded_.staging().data());
  EXPECT_EQ(b.num_tokens, 4);
  EXPECT_EQ(b.num_seqs, 4);
  EXPECT_EQ(b.num_decodes, 4);
  EXPECT_EQ(b.num_logits, 4);
  EXPECT_EQ(b.max_query_len, 1);
  EXPECT_EQ(b.max_seq_len, 64);
  EXPECT_EQ(b.block_table_stride, 4);
  EXPECT_EQ(array(b.token_ids, 4), (Ids{119, 202, 409, 0}));
  EXPECT_EQ(array(b.positions, 4), (Ids{19, 2, 9, 0}));
  EXPECT_EQ(array(b.slot_mapping, 4), (Ids{3 * 16 + 3, 5 * 16 + 2, 2 * 16 + 9, -1}));
  EXPECT_EQ(array(b.query_start_loc, 5), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(array(b.seq_lens, 4), (Ids{20, 3, 10, 0}));
  EXPECT_EQ(array(b.block_table, 16), (Ids{7, 3, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(array(b.logits_rows, 4), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(padded_.sampling_rows().size(), 3U);  // nobody samples padding
}

TEST_F(PaddedStepBatchTest, StepsOfOneBucketHaveOneSetOfAddresses) {
  const auto end = [&] { return padded_.forward_batch(nullptr).logits_rows; };
  padded_.build(input_);
  const int32_t* const of_two = end();
  input_.sequences[0].num_computed_tokens = 2;
  padded_.build(input_);
  EXPECT_EQ(end(), of_two);
  input_.sequences.resize(5, input_.sequences[0]);
  padded_.build(input_);
  EXPECT_NE(end(), of_two);
}

TEST_F(PaddedStepBatchTest, OtherStepsAreNotPadded) {
  const auto is_padded = [&](const StepInput& input) {
    padded_.build(input);
    return padded_.decode_shape().has_value();
  };
  EXPECT_TRUE(is_padded(input_));
  StepInput prefill = input_;
  prefill.sequences[1].num_computed_tokens = 0;
  prefill.sequences[1].num_new_tokens = 3;
  EXPECT_FALSE(is_padded(prefill));
  StepInput silent = input_;
  silent.sequences[1].sample = false;
  EXPECT_FALSE(is_padded(silent));
  StepInput scored = input_;
  scored.sequences[0].prompt_logprobs_begin = 1;
  scored.sequences[0].prompt_logprobs_end = 30;
  scored.sequences[0].token_ids = third_;
  EXPECT_FALSE(is_padded(scored));
  StepInput many;
  many.sequences.assign(9, input_.sequences[1]);
  EXPECT_FALSE(is_padded(many));
}

TEST_F(StepBatchTest, DrawsHaveTheFirstRows) {
  // The first sequence of the step is scored, and one samples nothing.
  input_.sequences[0].token_ids = third_;
  input_.sequences[0].prompt_logprobs_begin = 1;
  input_.sequences[0].prompt_logprobs_end = 30;
  input_.sequences[1].sample = false;
  input_.sequences[2].sample = true;
  batch_.build(input_);
  batch_.set_draws(std::vector<SamplingRow>{{.seed = 1}, {.seed = 3}});
  const auto rows = batch_.sampling_rows();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].seed, 1U);
  EXPECT_EQ(rows[1].seed, 3U);
  EXPECT_EQ(rows[2].forced_id, 320);
  const ForwardBatch b = batch_.forward_batch(batch_.staging().data());
  EXPECT_EQ(array(b.logits_rows, 3), (Ids{0, 5, 0}));
}

TEST_F(StepBatchTest, PendingTokensNameTheDrawsThatTheyAre) {
  input_.sequences.resize(2);
  input_.sequences[0] = {.token_ids = third_,
                         .num_computed_tokens = 40,
                         .num_new_tokens = 1,
                         .block_table = third_blocks_,
                         .sample = true,
                         .pending_from = 4};
  // All of it again, after a preemption: only the last token is not known.
  input_.sequences[1] = {.token_ids = second_,
                         .num_computed_tokens = 1,
                         .num_new_tokens = 3,
                         .block_table = second_blocks_,
                         .sample = true,
                         .pending_from = 1};
  batch_.build(input_);
  const ForwardBatch b = batch_.forward_batch(batch_.staging().data());
  EXPECT_EQ(array(b.token_ids, 4), (Ids{-1 - 4, 201, 202, -1 - 1}));
}

}  // namespace
}  // namespace nanovllm
