// Requests as JSON lines: what is taken, and what is refused in which sentence.
#include "api/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace nanovllm {
namespace {

std::string refusal(const std::string& line) {
  try {
    parse_request_line(line, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(RequestLine, TakesItsParametersOverTheDefaults) {
  SamplingParams defaults;
  defaults.top_k = 7;
  const RequestLine request = parse_request_line(
      R"({"prompt_token_ids": [1, 2], "sampling_params":
          {"temperature": 0, "logit_bias": {"12": -3, "4": 1e300}, "stop": "x"}})",
      defaults);
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompt), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(request.params.temperature, 0);
  EXPECT_EQ(request.params.top_k, 7);
  EXPECT_EQ(request.params.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.params.logit_bias.at(12), -3);
  EXPECT_GT(request.params.logit_bias.at(4), 100);
}

TEST(RequestLine, TakesEverySeedOf64BitsAndMinusOneAsNone) {
  SamplingParams defaults;
  defaults.seed = 7;
  const auto seed_of = [&](const std::string& seed) {
    const std::string line = R"({"prompt": "x", "sampling_params": {"seed": )" + seed + "}}";
    return parse_request_line(line, defaults).params.seed;
  };
  EXPECT_EQ(seed_of("0"), 0u);
  EXPECT_EQ(seed_of("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed_of("-1"), std::nullopt);
  EXPECT_EQ(seed_of("null"), std::nullopt);
  for (const char* wrong : {"-2", "-9223372036854775808", "18446744073709551616", "-1.0", "1.5"}) {
    EXPECT_THROW(seed_of(wrong), Error) << wrong;
  }
}

TEST(RequestLine, TakesNullForWhatVllmTakesNoneFor) {
  SamplingParams defaults;
  defaults.stop_token_ids = {5};
  defaults.logit_bias[3] = 1;
  defaults.stop = {"x"};
  const SamplingParams params =
      parse_request_line(R"({"prompt": "x", "sampling_params": {"max_tokens": null, "stop": null,
          "stop_token_ids": null, "logit_bias": null, "logprobs": null}})",
                         defaults)
          .params;
  EXPECT_EQ(params.max_tokens, std::numeric_limits<int>::max());
  EXPECT_TRUE(params.stop_token_ids.empty() && params.logit_bias.empty() && params.stop.empty());
  EXPECT_EQ(params.logprobs, std::nullopt);
  EXPECT_EQ(parse_request_line(R"({"prompt": "x", "sampling_params": null})", defaults).params.stop,
            defaults.stop);
}

TEST(RequestLine, NullKeepsTheDefaultWhereNoneIsOneInVllm) {
  SamplingParams defaults;
  defaults.n = 3;
  defaults.temperature = 0.6;
  defaults.top_p = 0.9;
  defaults.top_k = 20;
  defaults.min_p = 0.1;
  defaults.presence_penalty = 0.2;
  defaults.frequency_penalty = 0.3;
  defaults.repetition_penalty = 1.1;
  const SamplingParams params =
      parse_request_line(R"({"prompt": "x", "sampling_params": {"n": null, "temperature": null,
          "top_p": null, "top_k": null, "min_p": null, "presence_penalty": null,
          "frequency_penalty": null, "repetition_penalty": null}})",
                         defaults)
          .params;
  EXPECT_EQ(params.n, 3);
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_p, 0.9);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.min_p, 0.1);
  EXPECT_EQ(params.presence_penalty, 0.2);
  EXPECT_EQ(params.frequency_penalty, 0.3);
  EXPECT_EQ(params.repetition_penalty, 1.1);
  for (const char* name :
       {"min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"}) {
    const std::string line =
        fmt::format(R"({{"prompt": "x", "sampling_params": {{"{}": null}}}})", name);
    EXPECT_TRUE(refusal(line).ends_with(", got null")) << refusal(line);
  }
}

TEST(RequestLine, RefusesNestingThatWouldExhaustTheStack) {
  const std::string sentence = "the request: JSON nested deeper than 64 levels";
  EXPECT_EQ(refusal(nested(1'000'000)), sentence);
  EXPECT_EQ(refusal(R"({"prompt": )" + nested(1'000'000) + "}"), sentence);
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"stop": )" + nested(1'000'000) + "}}"),
            sentence);
}

TEST(RequestLine, IsRefusedInOneShortSentence) {
  EXPECT_EQ(refusal("[1, 2]"), "a request must be a JSON object, got an array");
  EXPECT_EQ(refusal(R"({"prompt": [1, 2]})"), "\"prompt\" must be a text, got an array");
  EXPECT_EQ(refusal(R"({"prompt_token_ids": null})"),
            "prompt_token_ids must be a list of token ids, got null");
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"logit_bias": {"12abc": 1}}})"),
            "logit_bias has the key \"12abc\", expected a token id");
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"seed": -2}})"),
            "seed is out of range: -2");
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"temperature": "\u001bhot"}})"),
            "temperature must be a number, got \"\\u001bhot\"");
  EXPECT_EQ(refusal("{\"prompt\": \"x\", \"a\\u0000b\": 1}"),
            "unknown field \"a?b\"; a request has \"prompt\" or \"prompt_token_ids\", and "
            "\"sampling_params\"");
  EXPECT_LT(refusal(R"({"prompt": )" + std::string(5000, '1') + "}").size(), 300u);
  EXPECT_NE(refusal("not json"), "");
}

}  // namespace
}  // namespace nanovllm
