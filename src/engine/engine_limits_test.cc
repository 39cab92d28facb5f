// What the engine refuses, with which sentence, and what it just serves.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

std::string refusal(EngineCore& core, const Prompt& prompt, const SamplingParams& params) {
  try {
    core.add_request(prompt, params);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string remarks(EngineCore& core, const std::vector<std::string>& bad_words) {
  SamplingParams params = greedy(1);
  params.bad_words = bad_words;
  ::testing::internal::CaptureStderr();
  core.add_request(prompt_of(5), params);
  return ::testing::internal::GetCapturedStderr();
}

TEST(EngineRemarks, OnEachBadWordThatCanComeOnce) {
  FakeEngine engine = make_fake_engine({}, alphabet());
  const std::string remark =
      "nanovllm: bad_words: \"a\u00e9\" can come: the tokenizer reads it as \"a\"\n";
  EXPECT_EQ(remarks(*engine.core, {"b", "a\u00e9", "a\u00e9"}), remark);
  EXPECT_EQ(remarks(*engine.core, {"a\u00e9", "c"}), "");
  SamplingParams refused = greedy(1);
  refused.bad_words = {"d\u00e9", "\u00e9"};
  ::testing::internal::CaptureStderr();
  EXPECT_NE(refusal(*engine.core, prompt_of(5), refused), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  FakeEngine silent = make_fake_engine({}, alphabet());
  silent.core->withhold_remarks();
  EXPECT_EQ(remarks(*silent.core, {"a\u00e9"}), "");
}

// `from`, `from` + 1 ... as words, with an end that the alphabet lacks if they shall be able to
// come.
std::vector<std::string> numbered(int from, int count, const char* end) {
  std::vector<std::string> words;
  for (int i = from; i < from + count; ++i) {
    std::string& word = words.emplace_back(end);
    for (int rest = i; rest > 0; rest /= 26) word.insert(0, 1, static_cast<char>('a' + rest % 26));
  }
  return words;
}

TEST(EngineRemarks, OnNoMoreBadWordsThanSomebodyMayRead) {
  const auto num_lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
  FakeEngine engine = make_fake_engine({.num_blocks = 128}, alphabet());
  EXPECT_EQ(num_lines(remarks(*engine.core, numbered(1, 99, "\u00e9"))), 99);
  EXPECT_EQ(num_lines(remarks(*engine.core, numbered(100, 2, "\u00e9"))), 1);
  FakeEngine other = make_fake_engine({.num_blocks = 128}, alphabet());
  EXPECT_EQ(num_lines(remarks(*other.core, numbered(1, 999, ""))), 0);
  EXPECT_EQ(num_lines(remarks(*other.core, numbered(1, 2, "\u00e9"))), 1);  // the 1,000th judged
}

TEST(EngineRefuses, WhatCanNeverBeServedAndGoesOn) {
  FakeEngine engine = make_fake_engine({.num_blocks = 8, .max_model_len = 64});
  EngineCore& core = *engine.core;
  const uint64_t good = core.add_request(prompt_of(5), greedy(3));
  EXPECT_EQ(refusal(core, Ids{}, greedy(1)), "The decoder prompt cannot be empty");
  EXPECT_EQ(refusal(core, Ids(65, 1), greedy(1)),
            "The decoder prompt (length 65) is longer than the maximum model length of 64. Make "
            "sure that `max_model_len` is no smaller than the number of text tokens.");
  EXPECT_EQ(refusal(core, Ids(64, 1), greedy(1)),
            "The decoder prompt (length 64) plus the number of requested output tokens (at least "
            "1) is longer than the maximum model length of 64. Make sure that `max_model_len` is "
            "no smaller than the number of text tokens (prompt + requested output tokens).");
  EXPECT_EQ(refusal(core, Ids{1, 50, 2}, greedy(1)),
            "Token id 50 is out of vocabulary; the model knows 0 to 49.");
  EXPECT_EQ(refusal(core, Ids{1, -1}, greedy(1)),
            "Token id -1 is out of vocabulary; the model knows 0 to 49.");
  EXPECT_EQ(refusal(core, prompt_of(20), greedy(14)),
            "The request can never fit in the KV cache: 20 prompt tokens and up to 14 output "
            "tokens need 9 blocks of 4 tokens, but there are 8; lower max_tokens, or raise "
            "num_kvcache_blocks or kv_cache_memory.");
  EXPECT_NE(refusal(core, prompt_of(33), greedy(kAsManyAsFit)), "");
  SamplingParams params = greedy(1);
  params.stop = {"end"};
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "stop strings need a tokenizer, and fake has no tokenizer; use stop_token_ids.");
  params = greedy(1);
  params.bad_words = {"end"};
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "bad_words need a tokenizer, and fake has no tokenizer; use logit_bias.");
  EXPECT_EQ(refusal(core, "text", greedy(1)),
            "A text prompt needs a tokenizer, and fake has no tokenizer; give the prompt as "
            "token ids.");
  params = greedy(1);
  params.stop_token_ids = {3, 50, -2};
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "token_id(s) [50, -2] in stop_token_ids contain out-of-vocab token ids. Vocabulary "
            "size: 50");
  params = greedy(1);
  params.logit_bias = {{50, 1.0f}};
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "token_id(s) [50] in logit_bias contain out-of-vocab token ids. Vocabulary size: 50");
  params = greedy(1);
  params.logprobs = -1;
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "logprobs of -1 asks for the whole vocabulary, 50 tokens, which is greater than max "
            "allowed: 20; use logprobs of 20.");
  params.logprobs = {};
  params.allowed_token_ids = Ids{49, 50, -2};
  EXPECT_EQ(refusal(core, prompt_of(5), params),
            "token_id(s) [50, -2] in allowed_token_ids contain out-of-vocab token ids. Vocabulary "
            "size: 50");
  params.allowed_token_ids.reset();
  params.prompt_logprobs = -1;
  EXPECT_EQ(
      refusal(core, prompt_of(5), params),
      "prompt_logprobs of -1 asks for the whole vocabulary, 50 tokens, which is greater than max "
      "allowed: 20; use prompt_logprobs of 20.");
  EXPECT_EQ(refusal(core, prompt_of(5), greedy(0)), "max_tokens must be at least 1, got 0.");
  EXPECT_EQ(run(core).at(good).outputs[0].token_ids, greedy_tokens(prompt_of(5), 3));
}

TEST(EngineServes, WhatJustFits) {
  FakeEngine engine = make_fake_engine({.num_blocks = 8, .max_model_len = 64});
  // 32 slots: the 33rd token is never fed back.
  EXPECT_EQ(run_one(*engine.core, prompt_of(20), greedy(13)).outputs[0].token_ids,
            greedy_tokens(prompt_of(20), 13));
  for (const int num_prompt_tokens : {20, 32}) {
    const Ids prompt = prompt_of(num_prompt_tokens);
    const RequestOutput output = run_one(*engine.core, prompt, greedy(kAsManyAsFit));
    EXPECT_EQ(output.outputs[0].token_ids, greedy_tokens(prompt, 33 - num_prompt_tokens));
    EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kLength);
  }
  FakeEngine longest = make_fake_engine({.max_model_len = 64});
  EXPECT_EQ(run_one(*longest.core, Ids(63, 1), greedy(9)).outputs[0].token_ids,
            greedy_tokens(Ids(63, 1), 1));
}

TEST(EngineServes, AllLogprobsOfATinyVocabulary) {
  FakeEngine engine = make_fake_engine({.vocab_size = 10});
  SamplingParams params = greedy(1);
  params.logprobs = -1;
  const RequestOutput output = run_one(*engine.core, {1, 2, 3}, params);
  EXPECT_EQ(output.outputs[0].logprobs.at(0).size(), 11u);  // the chosen one, then all
}

TEST(EngineServes, AllLogprobsUpToTheMostThatMayBeAskedFor) {
  SamplingParams params = greedy(1);
  params.logprobs = -1;
  EXPECT_EQ(refusal(*make_fake_engine({.vocab_size = 20}).core, Ids{1, 2}, params), "");
  EXPECT_EQ(refusal(*make_fake_engine({.vocab_size = 21}).core, Ids{1, 2}, params),
            "logprobs of -1 asks for the whole vocabulary, 21 tokens, which is greater than max "
            "allowed: 20; use logprobs of 20.");
}

TEST(EngineServes, ManyCompletionsThatHoldTheirPromptOnce) {
  RequestContext context;
  context.limits = {.max_model_len = 4096, .num_kvcache_blocks = 16, .kvcache_block_size = 256};
  SamplingParams params = random(2, 1);
  params.n = 16384;
  const Request request(0, "", Ids(4000, 1), params, context);
  size_t num_ids = 0;
  for (const auto& completion : request.completions()) {
    num_ids += completion->token_ids.capacity();
    EXPECT_EQ(completion->num_tokens(), 4000);
  }
  EXPECT_EQ(num_ids, 4000u);
}

TEST(EngineDiscards, ARequestThatIsDiscardedLeavesNothing) {
  FakeEngine engine = make_fake_engine();
  const uint64_t id = engine.core->add_request(prompt_of(5), greedy(3));
  engine.core->discard_request(id);
  EXPECT_TRUE(engine.core->is_finished());
  EXPECT_TRUE(engine.core->step().empty());
  EXPECT_EQ(engine.runner->num_steps, 0);
}

TEST(EngineDiscards, ARequestThatIsFinishedEarlyGivesWhatItHas) {
  LLMEngine engine(make_fake_engine().core);
  const uint64_t id = engine.add_request(prompt_of(5), greedy(3));
  engine.step();
  const std::optional<RequestOutput> output = engine.finish_request(id);
  ASSERT_TRUE(output);
  EXPECT_TRUE(output->finished);
  EXPECT_EQ(output->outputs[0].token_ids, greedy_tokens(prompt_of(5), 1));
  EXPECT_EQ(output->outputs[0].finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(engine.is_finished());
  EXPECT_FALSE(engine.finish_request(id));
  engine.discard_request(id);
}

TEST(EngineStepper, IsTheOnlyOneThatSteps) {
  LLMEngine engine(make_fake_engine().core);
  engine.add_request(prompt_of(5), greedy(2));
  {
    LLMEngine::Stepper stepper(engine);
    EXPECT_THROW(LLMEngine::Stepper second(engine), Error);
    EXPECT_THROW(engine.step(), Error);
    EXPECT_EQ(stepper.step().at(0).outputs[0].token_ids.size(), 1u);
  }
  EXPECT_EQ(engine.step().at(0).outputs[0].token_ids, greedy_tokens(prompt_of(5), 2));
}

TEST(EngineSeeds, AreThoseOfRequestsWithoutTheirOwn) {
  LLMEngine engine(make_fake_engine().core);
  const uint64_t id = engine.add_request(prompt_of(3), random(4));
  engine.add_request(prompt_of(3), random(4, engine.seed_of(id)));
  engine.add_request(prompt_of(3), random(4));
  std::vector<RequestOutput> last;
  while (!engine.is_finished()) last = engine.step();
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[0].outputs[0].token_ids, last[1].outputs[0].token_ids);
  EXPECT_NE(last[0].outputs[0].token_ids, last[2].outputs[0].token_ids);
}

}  // namespace
}  // namespace nanovllm
