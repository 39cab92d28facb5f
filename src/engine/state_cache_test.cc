// What is computed again of prompts that begin as others did, where layers are recurrent, on the
// sizes of Qwen3.5-0.8B; or have windows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_test_support.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {
namespace {

constexpr int kRealBlock = 256, kRealChunk = 64, kFewTokens = 50;
constexpr int64_t kKiB = 1024;
constexpr int64_t kTokenBytes = 12 * kKiB, kSlotBytes = 18432 * kKiB, kLogBytes = 13824 * kKiB;

// Blocks for so many tokens, and states in half as much memory.
FakeEngineOptions sizes_for(int64_t num_tokens, int max_num_seqs, int block_size = kRealBlock) {
  const int64_t state_bytes = num_tokens * kTokenBytes / 2;
  const int64_t num_slots = (state_bytes - max_num_seqs * kLogBytes) / kSlotBytes;
  EXPECT_GE(num_slots, 2 * max_num_seqs);
  return {
      .num_blocks = static_cast<int>(num_tokens / block_size),
      .block_size = block_size,
      .vocab_size = kFewTokens,
      .max_model_len = 1 << 17,
      .max_num_batched_tokens = 4096,
      .max_num_seqs = max_num_seqs,
      .states = {
          .num_slots = static_cast<int>(num_slots), .num_logs = max_num_seqs, .chunk = kRealChunk}};
}

class Texts {
 public:
  Ids some(int count) {
    Ids ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(1 + rng_() % (kFewTokens - 1));
    return ids;
  }

 private:
  std::mt19937 rng_{3};
};

void append(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

int num_recomputed(const RequestOutput& output) {
  return static_cast<int>(output.prompt_token_ids.size()) - output.num_cached_tokens;
}

// Runs requests to their ends; their outputs in order. Whatever was not cached was computed, and no
// more: but for a last token, which is not fed back.
std::vector<RequestOutput> answers_to(FakeEngine& engine, const std::vector<Ids>& prompts,
                                      int num_tokens) {
  const int num_computed_before = engine.runner->num_computed_tokens;
  std::vector<uint64_t> ids;
  for (const Ids& prompt : prompts) {
    ids.push_back(engine.core->add_request(prompt, greedy(num_tokens)));
  }
  std::map<uint64_t, RequestOutput> last = run(*engine.core);
  std::vector<RequestOutput> outputs;
  int num_expected = 0;
  for (const uint64_t id : ids) {
    outputs.push_back(std::move(last.at(id)));
    num_expected += num_recomputed(outputs.back()) + num_tokens - 1;
    EXPECT_EQ(outputs.back().num_preemptions, 0);
  }
  EXPECT_EQ(engine.runner->num_computed_tokens - num_computed_before, num_expected);
  return outputs;
}

TEST(StateCache, AChatComputesItsNewTokensAndTwoBlocks) {
  Texts texts;
  for (const int block_size : {16, 64, 256}) {
    FakeEngine engine = make_fake_engine(sizes_for(32768, 1, block_size));
    Ids prompt = texts.some(700);
    int num_new = 700;
    for (int turn = 0; turn < 10; ++turn) {
      const RequestOutput output = answers_to(engine, {prompt}, 30 + 70 * turn)[0];
      EXPECT_LE(num_recomputed(output), num_new + 2 * std::max(block_size, kRealChunk)) << turn;
      const Ids question = texts.some(20 + 31 * turn);
      append(prompt, output.outputs[0].token_ids);
      append(prompt, question);
      num_new = static_cast<int>(question.size()) + 1;  // the answer's last token was not fed back
    }
  }
}

// Whether the template writes an answer otherwise once it isn't the last message, or already in the
// next turn.
class AgentLoops : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(RewritesTheLastButOne, AgentLoops, ::testing::Bool());

TEST_P(AgentLoops, ComputeTwoThousandTokensATurn) {
  constexpr int kNumLoops = 8, kNumTurns = 30, kResult = 450, kAnswer = 6, kRewritten = 4;
  constexpr int kPrompt = 20000, kLongest = kPrompt + kNumTurns * (kResult + kAnswer);
  const bool rewrites_late = GetParam();
  FakeEngine engine = make_fake_engine(sizes_for(int64_t{10} * kLongest, kNumLoops));
  Texts texts;
  std::vector<Ids> histories, prompts;
  for (int i = 0; i < kNumLoops; ++i) histories.push_back(texts.some(kPrompt));
  prompts = histories;
  for (int turn = 0; turn < kNumTurns; ++turn) {
    const auto outputs = answers_to(engine, prompts, kAnswer);
    for (int i = 0; i < kNumLoops; ++i) {
      if (turn > 0) {
        EXPECT_LE(num_recomputed(outputs[i]), 2000) << "turn " << turn;
      }
      const Ids rewritten = texts.some(kRewritten), result = texts.some(kResult);
      prompts[i] = histories[i];
      append(prompts[i], rewrites_late ? outputs[i].outputs[0].token_ids : rewritten);
      append(prompts[i], result);
      append(histories[i], rewritten);
      append(histories[i], result);
    }
  }
}

TEST(StateCache, ABeginningThatManyHaveIsComputedTwice) {
  constexpr int kBeginning = 3000, kQuestion = 50, kNumUsers = 64;
  Texts texts;
  const Ids beginning = texts.some(kBeginning);
  FakeEngine engine = make_fake_engine(sizes_for(kNumUsers * 4096, 16));
  int num_computed = 0;
  for (int user = 0; user < kNumUsers; ++user) {
    Ids prompt = beginning;
    append(prompt, texts.some(kQuestion));
    num_computed += num_recomputed(answers_to(engine, {prompt}, 20)[0]);
  }
  EXPECT_LE(num_computed, 2 * kBeginning + kNumUsers * (kQuestion + kRealBlock));
}

// The same of users who come together: also where no layer is recurrent, and steps run ahead.
class UsersTogether : public ::testing::TestWithParam<std::tuple<bool, int>> {};
INSTANTIATE_TEST_SUITE_P(StatesAndDepths, UsersTogether,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1)));

TEST_P(UsersTogether, ComputeTheirBeginningOnce) {
  constexpr int kBeginning = 3000, kQuestion = 50, kNumUsers = 64, kAnswer = 20;
  const auto [has_states, depth] = GetParam();
  Texts texts;
  const Ids beginning = texts.some(kBeginning);
  FakeEngineOptions options = sizes_for(kNumUsers * 4096, 16);
  options.pipeline_depth = depth;
  options.max_num_batched_tokens = 16384;
  if (!has_states) options.states = {};
  FakeEngine engine = make_fake_engine(options);
  std::vector<Ids> prompts;
  for (int user = 0; user < kNumUsers; ++user) {
    prompts.push_back(beginning);
    append(prompts.back(), texts.some(kQuestion));
  }
  int num_computed = 0;
  for (const RequestOutput& output : answers_to(engine, prompts, kAnswer)) {
    num_computed += num_recomputed(output);
  }
  EXPECT_LE(num_computed, kBeginning + kNumUsers * (kQuestion + kRealBlock));
  // Sixteen at a time, each group an answer long, and few steps more.
  EXPECT_LE(engine.runner->num_steps, kNumUsers / 16 * (kAnswer + 2) + 4);
}

TEST(StateCache, EachBeginningThatSomeHaveIsComputedOnce) {
  constexpr int kLengths[] = {1024, 2048, 3072};
  Texts texts;
  const Ids text = texts.some(4000);
  for (const bool shortest_first : {false, true}) {
    FakeEngine engine = make_fake_engine(sizes_for(64 * 4096, 16));
    std::vector<Ids> prompts = {text};
    for (int i = 0; i < 12; ++i) {
      const int length = kLengths[shortest_first ? i / 4 : 2 - i / 4];
      prompts.emplace_back(text.begin(), text.begin() + length);
      append(prompts.back(), texts.some(300));
    }
    int num_computed = 0;
    for (const RequestOutput& output : answers_to(engine, prompts, 5)) {
      num_computed += num_recomputed(output);
    }
    EXPECT_EQ(num_computed, 4000 + 12 * 300);
  }
}

TEST(StateCache, APreemptedSequenceGoesOnFromTheLastBoundaryThatItPassed) {
  // The two grow to 30 blocks each; then one waits while the other draws three tokens.
  FakeEngine engine = make_fake_engine(
      {.num_blocks = 60, .max_num_seqs = 2, .states = {.num_slots = 6, .num_logs = 2, .chunk = 8}});
  const uint64_t first = engine.core->add_request(prompt_of(20), greedy(103));
  const uint64_t second = engine.core->add_request(prompt_of(20, 25), greedy(140));
  const auto outputs = run(*engine.core);
  EXPECT_EQ(outputs.at(second).num_preemptions, 1);
  EXPECT_EQ(outputs.at(first).outputs[0].token_ids, greedy_tokens(prompt_of(20), 103));
  EXPECT_EQ(outputs.at(second).outputs[0].token_ids, greedy_tokens(prompt_of(20, 25), 140));
  EXPECT_LE(engine.runner->num_computed_tokens, 122 + 159 + 8);
}

// With memory for what eight chats see behind their last answers, and an eighth more for the step
// and the ends of prompts.
TEST(WindowCache, ChatsInTurnComputeTheirNewTokensAndABlock) {
  constexpr int kChats = 8, kTurns = 10, kBlock = 16, kFirst = 200, kQuestion = 50, kAnswer = 60;
  const std::vector<int> windows = {0, 64, 64, 64, 64, 64};
  const int64_t blocks_of_chat =
      kv_blocks_for(kFirst + kTurns * (kQuestion + kAnswer), windows, kBlock);
  FakeEngine engine = make_fake_engine({.num_blocks = static_cast<int>(blocks_of_chat) * 9,
                                        .block_size = kBlock,
                                        .vocab_size = kFewTokens,
                                        .max_model_len = 4096,
                                        .max_num_batched_tokens = 64,
                                        .max_num_seqs = 1,
                                        .kv_windows = windows});
  Texts texts;
  std::vector<Ids> prompts(kChats);
  for (Ids& prompt : prompts) prompt = texts.some(kFirst);
  for (int turn = 0; turn < kTurns; ++turn) {
    const int num_new = turn == 0 ? kFirst : kQuestion + 1;
    for (Ids& prompt : prompts) {
      const RequestOutput output = answers_to(engine, {prompt}, kAnswer)[0];
      EXPECT_LT(num_recomputed(output), num_new + kBlock) << turn;
      append(prompt, output.outputs[0].token_ids);
      append(prompt, texts.some(kQuestion));
    }
  }
}

}  // namespace
}  // namespace nanovllm
