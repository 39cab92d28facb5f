#include "nanovllm/sampling_params.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "engine/request.h"
#include "nanovllm/config.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kIntMax = std::numeric_limits<int>::max();

template <typename T>
std::string refusal(const std::function<void(T&)>& change) {
  T value;
  change(value);
  try {
    value.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

using P = SamplingParams;
using Change = std::function<void(P&)>;

TEST(SamplingParamsValidate, RefusesWithVllmsSentence) {
  const std::pair<Change, const char*> cases[] = {
      {[](P& p) { p.n = 0; }, "n must be at least 1, got 0."},
      {[](P& p) { p.n = 16385; }, "n must be at most 16384, got 16385."},
      {[](P& p) { p.presence_penalty = -2.5; }, "presence_penalty must be in [-2, 2], got -2.5."},
      {[](P& p) { p.presence_penalty = 2.5; }, "presence_penalty must be in [-2, 2], got 2.5."},
      {[](P& p) { p.presence_penalty = kNaN; }, "presence_penalty must be in [-2, 2], got nan."},
      {[](P& p) { p.frequency_penalty = -3; }, "frequency_penalty must be in [-2, 2], got -3.0."},
      {[](P& p) { p.frequency_penalty = 3; }, "frequency_penalty must be in [-2, 2], got 3.0."},
      {[](P& p) { p.frequency_penalty = kNaN; }, "frequency_penalty must be in [-2, 2], got nan."},
      {[](P& p) { p.repetition_penalty = 0; },
       "repetition_penalty must be greater than zero, got 0.0."},
      {[](P& p) { p.repetition_penalty = kInfinity; },
       "repetition_penalty must be a finite number, got inf."},
      {[](P& p) { p.repetition_penalty = 1e-300; },
       "repetition_penalty must be between 1.1754944e-38 and 3.4028235e+38, got 1e-300."},
      {[](P& p) { p.repetition_penalty = 1e300; },
       "repetition_penalty must be between 1.1754944e-38 and 3.4028235e+38, got 1e+300."},
      {[](P& p) { p.temperature = -1; }, "temperature must be non-negative, got -1.0."},
      {[](P& p) { p.temperature = kNaN; }, "temperature must be a finite number, got nan."},
      {[](P& p) { p.temperature = 2.1; }, "temperature must be in [0, 2], got 2.1."},
      {[](P& p) { p.top_p = 0; }, "top_p must be in (0, 1], got 0.0."},
      {[](P& p) { p.top_p = 1.5; }, "top_p must be in (0, 1], got 1.5."},
      {[](P& p) { p.top_p = kNaN; }, "top_p must be in (0, 1], got nan."},
      {[](P& p) { p.top_k = -2; }, "top_k must be 0 (disable), or at least 1, got -2."},
      {[](P& p) { p.min_p = -0.1; }, "min_p must be in [0, 1], got -0.1."},
      {[](P& p) { p.min_p = 1.1; }, "min_p must be in [0, 1], got 1.1."},
      {[](P& p) { p.min_p = kNaN; }, "min_p must be in [0, 1], got nan."},
      {[](P& p) { p.max_tokens = 0; }, "max_tokens must be at least 1, got 0."},
      {[](P& p) { p.min_tokens = -1; }, "min_tokens must be greater than or equal to 0, got -1."},
      {[](P& p) { p.min_tokens = 65; },
       "min_tokens must be less than or equal to max_tokens=64, got 65."},
      {[](P& p) { p.logprobs = -2; }, "logprobs must be non-negative or -1, got -2."},
      {[](P& p) { p.prompt_logprobs = -2; }, "prompt_logprobs must be non-negative or -1, got -2."},
      {[](P& p) { p.logprobs = 21; },
       "Requested sample logprobs of 21, which is greater than max allowed: 20"},
      {[](P& p) { p.prompt_logprobs = 21; },
       "Requested prompt logprobs of 21, which is greater than max allowed: 20"},
      {[](P& p) {
         p.stop = {"a", ""};
       },
       "stop cannot contain an empty string."},
      {[](P& p) {
         p.bad_words = {"a", ""};
       },
       "bad_words cannot contain an empty string."},
      {[](P& p) {
         p.bad_words = {"a", " \n"};
       },
       "bad_words cannot contain a text of white space only; ban its tokens with logit_bias."},
      {[](P& p) { p.allowed_token_ids.emplace(); }, "allowed_token_ids is not None and empty!"},
      {[](P& p) {
         p.logit_bias = {{3, std::numeric_limits<float>::quiet_NaN()}};
       },
       "logit_bias of token 3 must be a number."},
      {[](P& p) { p.structured_outputs.emplace(); },
       "You must use one kind of structured outputs constraint but none are specified: one of "
       "json, regex, choice, grammar, json_object, structural_tag."},
      {[](P& p) { p.structured_outputs = {.json = "{}", .choice = {{"a"}}, .json_object = true}; },
       "You can only use one kind of structured outputs constraint but multiple are specified: "
       "json, choice, json_object."},
      {[](P& p) { p.structured_outputs = {.regex = "", .grammar = "", .structural_tag = ""}; },
       "You can only use one kind of structured outputs constraint but multiple are specified: "
       "regex, grammar, structural_tag."},
      {[](P& p) { p.structured_outputs = {.regex = std::string((1 << 20) + 1, 'a')}; },
       "structured_outputs.regex may have 1048576 bytes, got 1048577."},
      {[](P& p) {
         p.structured_outputs = {
             .choice = {{std::string(1 << 19, 'a'), std::string((1 << 19) + 1, 'b')}}};
       },
       "structured_outputs.choice may have 1048576 bytes, got 1048577."},
      {[](P& p) { p.cache_salt = ""; },
       "Parameter 'cache_salt' must be a non-empty string if provided."},
      {[](P& p) { p.cache_salt = std::string(1025, 's'); },
       "Parameter 'cache_salt' may have 1024 bytes, got 1025."},
      {[](P& p) {
         p.temperature = 0;
         p.n = 2;
       },
       "n must be 1 when using greedy sampling, got 2."},
  };
  for (const auto& [change, sentence] : cases) EXPECT_EQ(refusal<P>(change), sentence);
}

TEST(SamplingParamsValidate, AcceptsTheEndsOfEveryRange) {
  const Change cases[] = {
      [](P&) {},
      [](P& p) { p.n = 1; },
      [](P& p) { p.n = 16384; },
      [](P& p) { p.presence_penalty = p.frequency_penalty = -2; },
      [](P& p) { p.presence_penalty = p.frequency_penalty = 2; },
      [](P& p) { p.repetition_penalty = std::numeric_limits<float>::min(); },
      [](P& p) { p.repetition_penalty = std::numeric_limits<float>::max(); },
      [](P& p) { p.temperature = 0; },
      [](P& p) { p.temperature = 2; },
      [](P& p) {
        p.temperature = 1e-300;
        p.n = 2;
      },
      [](P& p) { p.top_p = 1e-6; },
      [](P& p) { p.top_p = 1; },
      [](P& p) { p.top_p = p.min_p = p.temperature = 1e-300; },  // one token, all, as 0.01
      [](P& p) { p.top_k = -1; },
      [](P& p) { p.top_k = kIntMax; },
      [](P& p) { p.min_p = 0; },
      [](P& p) { p.min_p = 1; },
      [](P& p) {
        p.max_tokens = 1;
        p.min_tokens = 0;
      },
      [](P& p) { p.max_tokens = p.min_tokens = 1; },
      [](P& p) { p.max_tokens = p.min_tokens = kIntMax; },
      [](P& p) { p.logprobs = p.prompt_logprobs = -1; },
      [](P& p) { p.logprobs = p.prompt_logprobs = 20; },
      [](P& p) { p.allowed_token_ids.emplace({3}); },
      [](P& p) { p.structured_outputs = {.json = "", .disable_any_whitespace = true}; },
      [](P& p) { p.structured_outputs = {.grammar = std::string(1 << 20, ' ')}; },
      [](P& p) { p.structured_outputs = {.choice = {{std::string(1 << 20, ' ')}}}; },
      [](P& p) { p.structured_outputs = {.json_object = true, .whitespace_pattern = " "}; },
      [](P& p) { p.cache_salt = "s"; },
      [](P& p) { p.cache_salt = std::string(1024, 's'); },
      [](P& p) {
        p.logit_bias = {{3, 1e9f}};
      },
  };
  for (const Change& change : cases) EXPECT_EQ(refusal<P>(change), "");
}

TEST(SamplingParamsTemperature, IsGreedyAtZeroOnlyAndAtLeastAHundredthElse) {
  RequestContext context;
  context.limits = {.max_model_len = 100, .vocab_size = 50};
  const std::pair<double, float> cases[] = {
      {0, 0}, {1e-300, 0.01f}, {1e-6, 0.01f}, {0.009, 0.01f}, {0.5, 0.5f}};
  for (const auto& [asked, expected] : cases) {
    SamplingParams params;
    params.temperature = asked;
    params.top_k = 3;
    const Request request(0, "", {1, 2, 3}, params, context);
    StepRows rows;
    request.add_rows(*request.completions()[0], 3, 0, -1, rows);
    EXPECT_EQ(rows.rows()[0].temperature, expected);
    EXPECT_EQ(rows.rows()[0].top_k, asked == 0 ? 0 : 3);
  }
}

using C = EngineConfig;
using ConfigChange = std::function<void(C&)>;

struct RangeCase {
  int C::*field;
  const char* name;
  int low, high;
};

TEST(EngineConfigValidate, TakesEveryIntegerUpToBothEndsOfItsRange) {
  const RangeCase ranges[] = {
      {&C::max_num_batched_tokens, "max_num_batched_tokens", 1, 1 << 20},
      {&C::max_num_seqs, "max_num_seqs", 1, 1 << 16},
      {&C::max_model_len, "max_model_len (-1 for what fits)", 2, 1 << 24},
      {&C::num_kvcache_blocks, "num_kvcache_blocks (-1 for as many as fit)", 1, 1 << 24},
      {&C::kvcache_block_size, "kvcache_block_size", 16, 4096},
      {&C::tensor_parallel_size, "tensor_parallel_size", 1, 8},
      {&C::first_gpu, "first_gpu", 0, 1 << 16},
      {&C::num_threads, "num_threads (0 for as many as allowed)", 0, 1024},
  };
  for (const RangeCase& range : ranges) {
    const auto refusal_of = [&](int value) {
      return refusal<C>([&](C& c) { c.*range.field = value; });
    };
    for (const int end : {range.low, range.high}) EXPECT_EQ(refusal_of(end), "") << range.name;
    for (const int beyond : {range.low - 1, range.high + 1}) {
      EXPECT_EQ(refusal_of(beyond), fmt::format("{} must be between {} and {}, got {}.", range.name,
                                                range.low, range.high, beyond));
    }
  }
}

TEST(EngineConfigValidate, NamesTheFieldThatIsOutOfRange) {
  const std::pair<ConfigChange, const char*> cases[] = {
      {[](C& c) { c.gpu_memory_utilization = 0; },
       "gpu_memory_utilization must be in (0, 1], got 0."},
      {[](C& c) { c.gpu_memory_utilization = 1.5; },
       "gpu_memory_utilization must be in (0, 1], got 1.5."},
      {[](C& c) { c.gpu_memory_utilization = kNaN; },
       "gpu_memory_utilization must be in (0, 1], got nan."},
      {[](C& c) { c.kv_cache_memory = 0; }, "kv_cache_memory must be at least 1 byte, got 0."},
      {[](C& c) { c.state_cache_memory = 0; },
       "state_cache_memory must be at least 1 byte, got 0."},
      {[](C& c) { c.num_kvcache_blocks = -2; },
       "num_kvcache_blocks (-1 for as many as fit) must be between 1 and 16777216, got -2."},
      {[](C& c) { c.kvcache_block_size = 24; },
       "kvcache_block_size must be a multiple of 16, got 24."},
      {[](C& c) { c.max_step_seconds = -0.5; },
       "max_step_seconds must be between 0 and 3600, or -1 for what suits the device, got -0.5."},
      {[](C& c) { c.max_step_seconds = 3601; },
       "max_step_seconds must be between 0 and 3600, or -1 for what suits the device, got 3601."},
      {[](C& c) { c.max_step_seconds = kNaN; },
       "max_step_seconds must be between 0 and 3600, or -1 for what suits the device, got nan."},
      {[](C& c) { c.device = "tpu"; }, "device must be one of auto, cpu, cuda, got \"tpu\"."},
      {[](C& c) { c.dtype = "int8"; },
       "dtype must be one of auto, bfloat16, float32, got \"int8\"."},
  };
  for (const auto& [change, sentence] : cases) EXPECT_EQ(refusal<C>(change), sentence);
}

TEST(EngineConfigValidate, AcceptsEveryChoiceAndTheEndsOfOtherRanges) {
  const ConfigChange cases[] = {
      [](C&) {},
      [](C& c) {
        c.gpu_memory_utilization = 1e-6;
        c.kv_cache_memory = 1;
      },
      [](C& c) {
        c.gpu_memory_utilization = 1;
        c.kv_cache_memory = std::numeric_limits<int64_t>::max();
      },
      [](C& c) {
        c.device = "auto";
        c.dtype = "auto";
      },
      [](C& c) {
        c.device = "cpu";
        c.dtype = "bfloat16";
      },
      [](C& c) {
        c.device = "cuda";
        c.dtype = "float32";
      },
      [](C& c) { c.num_kvcache_blocks = -1; },
      [](C& c) { c.max_step_seconds = -1; },
      [](C& c) { c.max_step_seconds = 1e-3; },
      [](C& c) { c.max_step_seconds = 3600; },
  };
  for (const ConfigChange& change : cases) EXPECT_EQ(refusal<C>(change), "");
}

}  // namespace
}  // namespace nanovllm
