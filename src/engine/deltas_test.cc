#include "engine/deltas.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace nanovllm {
namespace {

// One token a letter, each with its log-probability.
template <typename Delta>
Delta gain_of(int index, const std::string& text, std::vector<TokenMark> marks = {}) {
  Delta delta;
  delta.index = index;
  delta.text = text;
  delta.marks = std::move(marks);
  for (const char letter : text) {
    delta.token_ids.push_back(letter);
    delta.logprobs.push_back({{letter, -1, 1, std::nullopt}});
  }
  return delta;
}

template <typename Total>
void expect_gain(const Total& total, const std::string& text, const std::vector<TokenMark>& marks) {
  const auto expected = gain_of<Total>(total.index, text, marks);
  EXPECT_EQ(total.text, expected.text);
  EXPECT_EQ(total.marks, expected.marks);
  EXPECT_EQ(total.token_ids, expected.token_ids);
  EXPECT_EQ(total.logprobs, expected.logprobs);
}

// In order, with marks that count from the beginning of what came first.
template <typename Total, typename Delta>
void expect_joined() {
  auto total = gain_of<Total>(2, "ab", {{1, 7}});
  append_delta(total, gain_of<Delta>(2, ""));
  append_delta(total, gain_of<Delta>(2, "cde", {{0, 7}, {2, 9}}));
  append_delta(total, gain_of<Delta>(2, "f", {{0, 7}}));
  expect_gain(total, "abcdef", {{1, 7}, {2, 7}, {4, 9}, {5, 7}});
  EXPECT_EQ(total.index, 2);
}

TEST(Deltas, JoinInOrderWithMarksAtTheirPlaces) {
  expect_joined<RequestDelta, RequestDelta>();
  expect_joined<CompletionOutput, RequestDelta>();
  expect_joined<CompletionOutput, CompletionOutput>();
}

// A position has an allocation of its own, and of many the copies would cost more than all else.
template <typename Total, typename Delta>
void expect_moved() {
  auto total = gain_of<Total>(0, "a");
  auto delta = gain_of<Delta>(0, "bc");
  const TokenLogprob* first = delta.logprobs[0].data();
  const TokenLogprob* second = delta.logprobs[1].data();
  append_delta(total, std::move(delta));
  ASSERT_EQ(total.logprobs.size(), 3u);
  EXPECT_EQ(total.logprobs[1].data(), first);
  EXPECT_EQ(total.logprobs[2].data(), second);
}

TEST(Deltas, MoveTheLogprobs) {
  expect_moved<RequestDelta, RequestDelta>();
  expect_moved<CompletionOutput, RequestDelta>();
  expect_moved<CompletionOutput, CompletionOutput>();
}

TEST(Deltas, SayHowACompletionEnded) {
  auto total = gain_of<CompletionOutput>(0, "a");
  append_delta(total, gain_of<RequestDelta>(0, "b"));
  EXPECT_EQ(total.finish_reason, FinishReason::kNone);  // a delta of an event says nothing of it
  auto last = gain_of<CompletionOutput>(0, "c");
  last.finish_reason = FinishReason::kStop;
  last.stop_reason = "!";
  append_delta(total, std::move(last));
  EXPECT_EQ(total.finish_reason, FinishReason::kStop);
  EXPECT_EQ(total.stop_reason, StopReason("!"));
  expect_gain(total, "abc", {});
}

TEST(Deltas, OfARequestJoinByCompletion) {
  RequestOutput first;
  first.request_id = 5;
  first.prompt = "p";
  first.prompt_token_ids = {1};
  first.prompt_logprobs = {std::nullopt};
  first.outputs = {gain_of<CompletionOutput>(0, "a"), gain_of<CompletionOutput>(1, "x", {{0, 3}})};
  RequestOutput total;
  append_delta(total, std::move(first));
  RequestOutput last;
  last.request_id = 5;
  last.finished = true;
  last.num_cached_tokens = 16;
  last.num_preemptions = 2;
  last.metrics.time_to_finish = 0.5;
  last.outputs = {gain_of<CompletionOutput>(0, "bc", {{1, 3}}), gain_of<CompletionOutput>(1, "")};
  last.outputs[0].finish_reason = last.outputs[1].finish_reason = FinishReason::kLength;
  append_delta(total, std::move(last));

  EXPECT_EQ(total.request_id, 5u);
  EXPECT_EQ(total.prompt, "p");  // which only the first one brings
  EXPECT_EQ(total.prompt_token_ids, std::vector<int32_t>{1});
  EXPECT_EQ(total.prompt_logprobs.size(), 1u);
  EXPECT_TRUE(total.finished);
  EXPECT_EQ(total.num_cached_tokens, 16);
  EXPECT_EQ(total.num_preemptions, 2);
  EXPECT_EQ(total.metrics.time_to_finish, 0.5);
  ASSERT_EQ(total.outputs.size(), 2u);
  expect_gain(total.outputs[0], "abc", {{2, 3}});
  expect_gain(total.outputs[1], "x", {{0, 3}});
  EXPECT_EQ(total.outputs[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(total.outputs[1].finish_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace nanovllm
