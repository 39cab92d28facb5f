#include "nanovllm/llm.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "engine/fake_runner.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

Ids prompt_of(int length, int32_t first) {
  Ids ids(length);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

LLM make_llm(FakeEngineOptions options = {}) {
  return LLM(LLMEngine(make_fake_engine(options).core));
}

SamplingParams params_of(int max_tokens, uint64_t seed = 1) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.seed = seed;
  return params;
}

TEST(Llm, OutputsAreInTheOrderOfThePrompts) {
  LLM llm = make_llm({.max_num_seqs = 2});
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (int i = 0; i < 7; ++i) {
    prompts.emplace_back(prompt_of(3 + i, i));
    params.push_back(params_of(10 - i));  // the later ones end first
  }
  const auto outputs = llm.generate(prompts, params);
  ASSERT_EQ(outputs.size(), 7u);
  for (int i = 0; i < 7; ++i) {
    EXPECT_TRUE(outputs[i].finished);
    EXPECT_EQ(outputs[i].prompt_token_ids, prompt_of(3 + i, i));
    EXPECT_EQ(outputs[i].outputs[0].token_ids.size(), 10u - i);
    LLM alone = make_llm();
    EXPECT_EQ(alone.generate({prompts[i]}, params[i])[0].outputs[0].token_ids,
              outputs[i].outputs[0].token_ids);
  }
  EXPECT_TRUE(llm.generate({}, params_of(3)).empty());
}

TEST(Llm, ReturnsTheWholeWhateverTheCallbackIsShown) {
  for (const auto kind :
       {RequestOutputKind::kCumulative, RequestOutputKind::kDelta, RequestOutputKind::kFinalOnly}) {
    SamplingParams params = params_of(6);
    params.n = 2;
    params.logprobs = 1;
    params.output_kind = kind;
    LLM llm = make_llm();
    const auto expected = llm.generate({prompt_of(9, 1)}, params);
    size_t num_shown = 0;
    const auto outputs = llm.generate({prompt_of(9, 1)}, params, [&](const auto& changed, auto&) {
      for (const auto& output : changed) {
        for (const auto& completion : output.outputs) num_shown += completion.token_ids.size();
      }
      return true;
    });
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(outputs[0].outputs[i].token_ids, expected[0].outputs[i].token_ids);
      EXPECT_EQ(outputs[0].outputs[i].logprobs.size(), 6u);
      EXPECT_EQ(outputs[0].outputs[i].finish_reason, FinishReason::kLength);
    }
    EXPECT_EQ(outputs[0].prompt_token_ids, prompt_of(9, 1));
    if (kind == RequestOutputKind::kCumulative) {
      EXPECT_GT(num_shown, 12u);
    } else {
      EXPECT_EQ(num_shown, 12u);
    }
  }
}

TEST(Llm, OneBadPromptIsNamedAndNothingIsDone) {
  FakeEngine engine = make_fake_engine();
  const FakeRunner* runner = engine.runner;
  LLM llm{LLMEngine(std::move(engine.core))};
  try {
    llm.generate({prompt_of(3, 1), Ids{}, prompt_of(4, 1)}, params_of(3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "prompt 1: The decoder prompt cannot be empty");
  }
  EXPECT_EQ(runner->num_steps, 0);
  EXPECT_TRUE(llm.engine().is_finished());
  EXPECT_THROW(llm.generate({prompt_of(3, 1)}, {params_of(3), params_of(3)}), Error);
  try {
    llm.generate({prompt_of(3, 1), "text"}, params_of(3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST(Llm, StopsWhenTheCallbackSaysSo) {
  for (const int depth : {0, 1}) {
    LLM llm = make_llm({.max_num_seqs = 1, .pipeline_depth = depth});
    int num_calls = 0;
    const auto outputs = llm.generate({prompt_of(3, 1), prompt_of(3, 5)}, params_of(50),
                                      [&](const auto&, const auto&) { return ++num_calls < 4; });
    ASSERT_EQ(outputs.size(), 2u);
    EXPECT_EQ(outputs[0].outputs[0].token_ids.size(), 4u);
    EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kAbort);
    EXPECT_TRUE(outputs[1].outputs[0].token_ids.empty());
    EXPECT_EQ(outputs[1].prompt_token_ids, prompt_of(3, 5));
    EXPECT_TRUE(outputs[0].finished && outputs[1].finished);
    EXPECT_EQ(num_calls, 4);
    EXPECT_TRUE(llm.engine().is_finished());
  }
}

TEST(Llm, StoppingLosesNothingOfRequestsThatRunAlong) {
  for (const int depth : {0, 1}) {
    LLM llm = make_llm({.pipeline_depth = depth});
    SamplingParams params = params_of(6);
    params.output_kind = RequestOutputKind::kDelta;
    const Ids expected = llm.generate({prompt_of(4, 2)}, params)[0].outputs[0].token_ids;
    const uint64_t other = llm.engine().add_request(prompt_of(4, 2), params);
    Ids seen;
    const auto collect = [&](const std::vector<RequestOutput>& changed) {
      for (const RequestOutput& output : changed) {
        if (output.request_id != other) continue;
        const Ids& ids = output.outputs[0].token_ids;
        seen.insert(seen.end(), ids.begin(), ids.end());
      }
    };
    const auto outputs =
        llm.generate({prompt_of(3, 1)}, params, [&](const auto& changed, const auto&) {
          collect(changed);
          return seen.size() < 2;
        });
    EXPECT_EQ(outputs.at(0).outputs[0].token_ids.size(), 2u);
    EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kAbort);
    while (!llm.engine().is_finished()) collect(llm.engine().step());
    EXPECT_EQ(seen, expected);
  }
}

// What `interfere` does in a callback is refused, and the generation goes on unharmed.
void expect_refused(const std::function<void(LLM&)>& interfere, const char* sentence) {
  LLM llm = make_llm();
  SamplingParams params = params_of(6);
  params.output_kind = RequestOutputKind::kDelta;
  const auto expected = llm.generate({prompt_of(3, 1)}, params);
  int num_refused = 0;
  const auto outputs = llm.generate({prompt_of(3, 1)}, params, [&](const auto&, const auto&) {
    try {
      interfere(llm);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_STREQ(error.what(), sentence);
      ++num_refused;
    }
    return true;
  });
  EXPECT_EQ(num_refused, 6);
  EXPECT_EQ(outputs.at(0).outputs[0].token_ids, expected.at(0).outputs[0].token_ids);
  interfere(llm);
}

TEST(Llm, ACallbackCanNeitherGenerateNorStep) {
  expect_refused([](LLM& llm) { llm.generate({prompt_of(3, 1)}, params_of(3)); },
                 "generate() can't be called by a callback of generate(); add requests to "
                 "engine() instead.");
  expect_refused([](LLM& llm) { llm.engine().step(); },
                 "step() can't be called while generate() runs, for it would take outputs of its "
                 "requests.");
}

TEST(Llm, EndsWhenItsEngineIsReplaced) {
  LLM llm = make_llm();
  const auto replace = [&](const auto&, const auto&) {
    llm.engine() = LLMEngine(make_fake_engine().core);
    return true;
  };
  EXPECT_THROW(llm.generate({prompt_of(3, 1)}, params_of(5), replace), Error);
  EXPECT_EQ(llm.generate({prompt_of(3, 1)}, params_of(5))[0].outputs[0].token_ids.size(), 5u);
}

TEST(Llm, IsFreeForTheNextCallAfterAnException) {
  FakeEngine engine = make_fake_engine();
  FakeRunner* runner = engine.runner;
  LLM llm{LLMEngine(std::move(engine.core))};
  const auto expected = llm.generate({prompt_of(3, 1)}, params_of(5));
  EXPECT_THROW(llm.generate({prompt_of(3, 1), prompt_of(3, 9)}, params_of(5),
                            [](const auto&, const auto&) -> bool { throw std::logic_error("x"); }),
               std::logic_error);
  EXPECT_TRUE(llm.engine().is_finished());
  runner->fail_at_step = runner->num_steps + 2;
  EXPECT_THROW(llm.generate({prompt_of(3, 1)}, params_of(5)), Error);
  EXPECT_TRUE(llm.engine().is_finished());
  EXPECT_EQ(llm.generate({prompt_of(3, 1)}, params_of(5))[0].outputs[0].token_ids,
            expected[0].outputs[0].token_ids);
}

TEST(Llm, RequestsOfTheEngineRunAlong) {
  LLM llm = make_llm();
  const uint64_t other = llm.engine().add_request(prompt_of(4, 2), params_of(3));
  bool other_finished = false;
  const auto outputs =
      llm.generate({prompt_of(3, 1)}, params_of(9), [&](const auto& changed, auto&) {
        for (const auto& output : changed) {
          other_finished = other_finished || (output.request_id == other && output.finished);
        }
        return true;
      });
  EXPECT_TRUE(other_finished);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].outputs[0].token_ids.size(), 9u);
}

}  // namespace
}  // namespace nanovllm
