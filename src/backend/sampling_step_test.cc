// What sampling shares between the steps of a pipeline: tickets, ids that stay on the device, and
// tokens that the host does not know yet.
#include <gtest/gtest.h>

#include <limits>

#include "backend/sampling_test_support.h"

namespace nanovllm::test {
namespace {

using Ids = std::vector<int32_t>;

class SamplingStepTest : public SamplingBackendTest {
 protected:
  Tensor tensor(const Buffer& logits, int64_t num_rows) const {
    return {logits.data(),
            DType::kFloat32,
            {num_rows, static_cast<int64_t>(logits.bytes() / sizeof(float)) / num_rows}};
  }
  std::vector<SamplingResult> collect(SamplingTicket& ticket, size_t num_rows) const {
    std::vector<SamplingResult> results(num_rows);
    ticket.collect(results);
    return results;
  }
  Ids download(const Buffer& buffer) {
    Ids ids(buffer.bytes() / sizeof(int32_t));
    backend_->download(ids.data(), buffer.data(), buffer.bytes());
    return ids;
  }
};

TEST_P(SamplingStepTest, DrawnIdsAreWrittenToTheDevice) {
  const auto logits =
      on_device(*backend_,
                std::vector<float>{1, 2, 3, 3, 2, 1, 0, std::numeric_limits<float>::infinity(), 0});
  const auto ids = on_device(*backend_, Ids{7, 7, 7, 7});
  const SamplingRow greedy{.temperature = 0};
  auto* const first = static_cast<int32_t*>(ids->data());
  backend_->sample(std::vector(3, greedy), tensor(*logits, 3), first + 1, nullptr);
  EXPECT_EQ(download(*ids), (Ids{7, 2, 0, -1}));
}

TEST_P(SamplingStepTest, ForcedIdsAreWrittenToTheDeviceToo) {
  const auto logits = on_device(*backend_, std::vector<float>{1, 2, 3});
  const auto ids = on_device(*backend_, Ids{7});
  backend_->sample(std::vector(1, SamplingRow{.forced_id = 1}), tensor(*logits, 1),
                   static_cast<int32_t*>(ids->data()), nullptr);
  EXPECT_EQ(download(*ids), (Ids{1}));
}

TEST_P(SamplingStepTest, APendingTokenEndsTheOutput) {
  const auto previous = on_device(*backend_, Ids{2, 0, -1});
  const Ids output = {0, 0, 1};
  const std::vector<float> raw = {4, 3.5f, 3};
  // Token 0 has 4 - 2 * 0.4 = 3.2, token 1 3.5 - 0.4 = 3.1 and token 2 3, and where one of them is
  // pending 0.4 less.
  const SamplingRow row{.temperature = 0, .frequency_penalty = 0.4f, .output_ids = output};
  const std::pair<int, int32_t> cases[] = {{-1, 0}, {0, 0}, {1, 1}, {2, 0}};  // from, expected
  for (const auto& [pending_from, expected] : cases) {
    SamplingRow pending = row;
    pending.pending_from = pending_from;
    const auto logits = on_device(*backend_, raw);
    const auto ticket = backend_->sample(std::vector(1, pending), tensor(*logits, 1), nullptr,
                                         static_cast<const int32_t*>(previous->data()));
    EXPECT_EQ(collect(*ticket, 1)[0].token_id, expected) << "pending from " << pending_from;
  }
}

TEST_P(SamplingStepTest, APendingTokenIsPenalisedAsAKnownOne) {
  const Ids prompt = {5, 6, 7};
  const std::vector<float> raw = normal_logits(3000, 1, 2);
  for (int i = 0; i < 20; ++i) {
    const auto previous = on_device(*backend_, Ids{i, 10 * i});
    const Ids before = {3, 10 * i, 8};
    Ids output = before;
    output.push_back(10 * i);
    SamplingRow row{.repetition_penalty = 1.7f,
                    .presence_penalty = 0.3f,
                    .frequency_penalty = 0.2f,
                    .seed = 5,
                    .position = static_cast<uint64_t>(i),
                    .prompt_ids = prompt,
                    .output_ids = output,
                    .num_logprobs = 3};
    const SamplingResult expected = sample_row(*backend_, row, raw);
    row.output_ids = before;
    row.pending_from = 1;
    const auto logits = on_device(*backend_, raw);
    const auto ticket = backend_->sample(std::vector(1, row), tensor(*logits, 1), nullptr,
                                         static_cast<const int32_t*>(previous->data()));
    const SamplingResult result = collect(*ticket, 1)[0];
    EXPECT_EQ(result.token_id, expected.token_id);
    ASSERT_EQ(result.logprobs.size(), expected.logprobs.size());
    for (size_t k = 0; k < expected.logprobs.size(); ++k) {
      EXPECT_EQ(result.logprobs[k].token_id, expected.logprobs[k].token_id);
      EXPECT_EQ(result.logprobs[k].logprob, expected.logprobs[k].logprob);
    }
  }
}

TEST_P(SamplingStepTest, TicketsInFlightKeepTheirOwnResults) {
  constexpr int kSteps = 12;
  std::vector<std::unique_ptr<Buffer>> logits;
  std::vector<std::unique_ptr<SamplingTicket>> tickets;
  for (int step = 0; step < kSteps; ++step) {
    // Each step has more rows than the last, and other lists.
    std::vector<float> values;
    for (int r = 0; r <= step; ++r) {
      for (int id = 0; id < 50; ++id) values.push_back(id == step + r || id == 49 ? 1.f : 0.f);
    }
    logits.push_back(on_device(*backend_, values));
    Ids banned = {49};
    std::vector<SamplingRow> rows(step + 1, {.temperature = 0, .banned_ids = banned});
    rows[0].num_logprobs = step;
    tickets.push_back(backend_->sample(rows, tensor(*logits.back(), step + 1), nullptr, nullptr));
    // All that sample() was given is the caller's again.
    banned[0] = step;
    rows.assign(rows.size(), {});
  }
  for (int step = 0; step < kSteps; ++step) {
    const auto results = collect(*tickets[step], step + 1);
    for (int r = 0; r <= step; ++r) EXPECT_EQ(results[r].token_id, step + r);
    // The chosen one has rank 1 among equals but for smaller ids; token 49 is its equal.
    EXPECT_EQ(results[0].logprobs.size(), step == 0 ? 1U : static_cast<size_t>(step));
  }
}

TEST_P(SamplingStepTest, ATicketMayGoUncollected) {
  const std::vector<float> raw = normal_logits(5000, 3, 2);
  const SamplingRow row{.top_p = 0.8f, .seed = 3, .num_logprobs = 4};
  const int32_t expected = sample_row(*backend_, row, raw).token_id;
  const auto logits = on_device(*backend_, raw);
  for (int i = 0; i < 50; ++i) {
    backend_->sample(std::vector(1, row), tensor(*logits, 1), nullptr, nullptr);
  }
  EXPECT_EQ(sample_row(*backend_, row, raw).token_id, expected);
}

TEST_P(SamplingStepTest, AStepWithoutRowsGivesNothing) {
  const auto logits = on_device(*backend_, std::vector<float>{1});
  const Tensor none(logits->data(), DType::kFloat32, {0, 1});
  std::vector<SamplingResult> results;
  backend_->sample({}, none, nullptr, nullptr)->collect(results);
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingStepTest, ::testing::ValuesIn(backends()),
                         name_of_backend);

}  // namespace
}  // namespace nanovllm::test
