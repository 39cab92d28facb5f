// Requests as JSON lines: what is taken, and what is refused in which sentence.
#include "api/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/testing.h"
#include "text/utf8.h"

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

TEST(RequestLine, TakesEverySeedOf64BitsWithASignAndMinusOneAsNone) {
  SamplingParams defaults;
  defaults.seed = 7;
  const auto seed_of = [&](const std::string& seed) {
    const std::string line = R"({"prompt": "x", "sampling_params": {"seed": )" + seed + "}}";
    return parse_request_line(line, defaults).params.seed;
  };
  EXPECT_EQ(seed_of("0"), 0);
  EXPECT_EQ(seed_of("-2"), -2);
  EXPECT_EQ(seed_of("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(seed_of("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(seed_of("-1"), std::nullopt);
  EXPECT_EQ(seed_of("null"), std::nullopt);
  for (const char* wrong : {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
                            "18446744073709551616", "-1.0", "1.5"}) {
    EXPECT_THROW(seed_of(wrong), Error) << wrong;
  }
}

TEST(RequestLine, TakesNullForWhatVllmTakesNoneFor) {
  SamplingParams defaults;
  defaults.stop_token_ids = {5};
  defaults.allowed_token_ids.emplace({5});
  defaults.logit_bias[3] = 1;
  defaults.stop = {"x"};
  const SamplingParams params =
      parse_request_line(R"({"prompt": "x", "sampling_params": {"max_tokens": null, "stop": null,
          "stop_token_ids": null, "bad_words": null, "logit_bias": null, "logprobs": null,
          "allowed_token_ids": null}})",
                         defaults)
          .params;
  EXPECT_EQ(params.max_tokens, std::numeric_limits<int>::max());
  EXPECT_TRUE(params.stop_token_ids.empty() && params.logit_bias.empty() && params.stop.empty());
  EXPECT_EQ(params.logprobs, std::nullopt);
  EXPECT_EQ(params.allowed_token_ids, std::nullopt);
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

TEST(RequestLine, TakesBadWordsAsAList) {
  const RequestLine request =
      parse_request_line(R"({"prompt": "x", "sampling_params": {"bad_words": ["a", " b"]}})", {});
  EXPECT_EQ(request.params.bad_words, (std::vector<std::string>{"a", " b"}));
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"bad_words": [5]}})"),
            "bad_words must hold texts only, got 5");
}

TEST(RequestLine, TakesChatsWithWhatTheirTemplateReads) {
  const RequestLine plain =
      parse_request_line(R"({"messages": [{"role": "user", "content": "Hi"}], "tools": null,
                            "chat_template_kwargs": null, "custom_id": null})",
                         {});
  EXPECT_EQ(plain.messages.dump(), R"([{"role":"user","content":"Hi"}])");
  EXPECT_TRUE(plain.tools.is_null());
  EXPECT_EQ(plain.chat_template_kwargs.dump(), "{}");
  EXPECT_FALSE(plain.custom_id);
  const RequestLine full = parse_request_line(
      R"({"custom_id": "", "tools": [{"b": 1, "a": 2}], "chat_template_kwargs": {"y": 1, "x": 2},
          "messages": [{"role": "user", "content": "Hi"}], "sampling_params": {"top_k": 3}})",
      {});
  EXPECT_EQ(full.tools.dump(), R"([{"b":1,"a":2}])") << "in their order: templates write them out";
  EXPECT_EQ(full.chat_template_kwargs.dump(), R"({"y":1,"x":2})");
  EXPECT_EQ(full.custom_id, "");
  EXPECT_EQ(full.params.top_k, 3);
  EXPECT_TRUE(parse_request_line(R"({"prompt": "x"})", {}).messages.is_null());
}

TEST(RequestLine, HasNoSchemaWithRoundedNumbers) {
  const auto error_of = [](const std::string& members) -> std::string {
    try {
      parse_request_line(R"({"prompt":"a",)" + members + "}", {}, 1);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string schema = R"({"const":123456789012345678901})";
  EXPECT_EQ(error_of(R"("sampling_params":{"structured_outputs":{"json":)" + schema + "}}"),
            "the request: the number 123456789012345678901 at "
            "/sampling_params/structured_outputs/json/const can't be held exactly; use fewer "
            "digits");
  EXPECT_NE(error_of(R"("response_format":{"type":"json_schema","json_schema":{"schema":)" +
                     schema + "}}"),
            "");
  EXPECT_EQ(error_of(R"("sampling_params":{"structured_outputs":{"json":{"const":1e23}}})"), "");
}

TEST(RequestLine, IsEitherAChatOrAPrompt) {
  EXPECT_EQ(refusal(R"({"messages": [], "prompt": "x"})"),
            "give either \"messages\" or \"prompt\", not both");
  EXPECT_EQ(refusal(R"({"messages": "x"})"), "\"messages\" must be a list, got \"x\"");
  EXPECT_EQ(refusal(R"({"messages": null})"), "\"messages\" must be a list, got null");
  EXPECT_EQ(refusal(R"({"messages": [], "tools": {}})"), "\"tools\" must be a list, got an object");
  EXPECT_EQ(refusal(R"({"prompt": "x", "tools": []})"),
            "\"tools\" is for chat templates: it goes with \"messages\", not with \"prompt\"");
  EXPECT_EQ(refusal(R"({"chat_template_kwargs": {}, "prompt_token_ids": [1]})"),
            "\"chat_template_kwargs\" is for chat templates: it goes with \"messages\", not with "
            "\"prompt_token_ids\"");
  EXPECT_EQ(refusal(R"({"custom_id": 5, "prompt": "x"})"), "\"custom_id\" must be a text, got 5");
  EXPECT_EQ(refusal("{}"),
            "a request needs \"prompt\" (a text), \"prompt_token_ids\" (a list) or \"messages\" (a "
            "list)");
}

TEST(RequestLine, HasItsIdWhateverElseIsWrong) {
  EXPECT_EQ(custom_id_of(R"({"nonsense": 1, "custom_id": "a"})"), "a");
  for (const char* line :
       {"", "[]", "{\"custom_id\": \"a\"", R"({"custom_id": 1})", R"({"a": "b"})"}) {
    EXPECT_EQ(custom_id_of(line), std::nullopt) << line;
  }
  EXPECT_EQ(custom_id_of(nested(1'000'000)), std::nullopt);
}

TEST(ResultLine, BearsTheIdOfItsRequest) {
  RequestOutput output;
  output.outputs.push_back({});
  EXPECT_EQ(result_line(3, output, "a\"").dump().substr(0, 38),
            R"({"index":3,"custom_id":"a\"","text":"")");
  EXPECT_FALSE(result_line(3, output).contains("custom_id"));
}

TEST(RequestLine, TellsWhereInItsFileItIsBroken) {
  try {
    parse_request_line(R"({"prompt": x})", {}, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("the request: not valid JSON: parse error at line 7, column 12: "))
        << error.what();
  }
}

TEST(ResultLine, HoldsLogprobRankAndDecodedTokenOfEachCandidate) {
  RequestOutput output;
  output.prompt_logprobs = {std::nullopt, PositionLogprobs{{5, -0.5f, 3, std::nullopt}}};
  output.outputs.push_back({});
  output.outputs[0].logprobs = {{{7, -2.25f, 40, " a"}, {9, -0.25f, 1, "\xff"}}};
  const nlohmann::ordered_json line = result_line(0, output);
  EXPECT_EQ(line.at("prompt_logprobs").dump(),
            R"([null,{"5":{"logprob":-0.5,"rank":3,"decoded_token":null}}])");
  EXPECT_EQ(line.at("logprobs").dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
            R"([{"7":{"logprob":-2.25,"rank":40,"decoded_token":" a"},)"
            R"("9":{"logprob":-0.25,"rank":1,"decoded_token":"\ufffd"}}])");
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
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"seed": 9223372036854775808}})"),
            "seed must be an integer from -9223372036854775808 to 9223372036854775807, got "
            "9223372036854775808");
  EXPECT_EQ(refusal(R"({"prompt": "x", "sampling_params": {"temperature": "\u001bhot"}})"),
            "temperature must be a number, got \"\\u001bhot\"");
  EXPECT_EQ(
      refusal("{\"prompt\": \"x\", \"a\\u0000b\": 1}"),
      "unknown field \"a?b\"; a request has \"prompt\", \"prompt_token_ids\" or \"messages\" (with "
      "\"tools\" and \"chat_template_kwargs\"), \"sampling_params\", \"response_format\" and "
      "\"custom_id\"");
  EXPECT_LT(refusal(R"({"prompt": )" + std::string(5000, '1') + "}").size(), 300u);
  EXPECT_NE(refusal("not json"), "");
}

constexpr const char* kEveryParameter = R"({"prompt": "Grüße 👋", "sampling_params": {"n": 2,
    "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": -0.5,
    "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"7": -1.5, "11": 100},
    "seed": 42, "max_tokens": 128, "min_tokens": 3, "ignore_eos": true, "stop": ["\n\n", "é"],
    "stop_token_ids": [2, 5], "allowed_token_ids": [7, 3], "bad_words": ["no", " \u00fc"], "include_stop_str_in_output": true, "skip_special_tokens": false,
    "structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": " "},
    "logprobs": 5, "prompt_logprobs": 0}})";

void damage_bytes(std::string& line, std::mt19937& random) {
  static constexpr char kAlphabet[] = "{}[]\",:0123456789-.eE\\nutrfals\xff\x80";  // and a zero
  for (uint32_t edits = 1 + random() % 3; edits > 0 && !line.empty(); --edits) {
    const size_t at = random() % line.size();
    switch (random() % 4) {
      case 0:
        line[at] = kAlphabet[random() % sizeof(kAlphabet)];
        break;
      case 1:
        line[at] = static_cast<char>(random());
        break;
      case 2:
        line.erase(at, 1 + random() % 10);
        break;
      default:
        line.insert(at, line.substr(random() % line.size(), random() % 40));
        break;
    }
  }
}

// Gives one parameter, or a part of it, another's value or one of another kind.
std::string with_changed_value(std::mt19937& random) {
  static const char* const kValues[] = {"null",
                                        "true",
                                        "0",
                                        "-1",
                                        "1e-300",
                                        "1e300",
                                        "2147483648",
                                        "18446744073709551615",
                                        "-9223372036854775808",
                                        R"("")",
                                        R"("\u0000\n")",
                                        R"("😀")",
                                        "[]",
                                        "[3]",
                                        R"(["a", "b"])",
                                        R"(["a", 1])",
                                        "{}",
                                        R"({"3": 1})",
                                        R"({"-3": null})",
                                        R"({"03": 1e300})",
                                        R"({"é": 1})"};
  nlohmann::json request = nlohmann::json::parse(kEveryParameter);
  nlohmann::json* value = &request["sampling_params"];
  do {
    auto child = value->begin();
    std::advance(child, static_cast<ptrdiff_t>(random() % value->size()));
    value = &*child;
  } while (value->is_structured() && random() % 2 == 0);
  *value = nlohmann::json::parse(kValues[random() % std::size(kValues)]);
  return request.dump();
}

// Whether the line is a request, be its parameters in range or not; if it is none, or they are not,
// one line of UTF-8 must say so.
bool is_request(const std::string& line) {
  bool is_parsed = false;
  try {
    const RequestLine request = parse_request_line(line, {});
    is_parsed = true;
    request.params.validate();
  } catch (const Error& error) {
    const std::string sentence = error.what();
    EXPECT_TRUE(error.code() == ErrorCode::kInvalidArgument ||
                (error.code() == ErrorCode::kCorruptData && !is_parsed));
    EXPECT_FALSE(sentence.empty());
    EXPECT_LT(sentence.size(), 450u) << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    EXPECT_EQ(text::find_invalid_utf8(sentence), sentence.size()) << sentence;
  } catch (const std::exception& other) {
    ADD_FAILURE() << "not an Error: " << other.what();
  }
  return is_parsed;
}

TEST(RequestLine, MutatedLinesAreParsedOrRefusedInOneSentence) {
  ASSERT_TRUE(is_request(kEveryParameter));
  // Under AddressSanitizer each exception takes half a millisecond.
  constexpr int kRounds = test::full_or_reduced(20'000, 4'000);
  std::mt19937 random(31);
  int parsed = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string line = round % 2 == 0 ? kEveryParameter : with_changed_value(random);
    if (round % 4 != 1) damage_bytes(line, random);
    parsed += is_request(line);
    ASSERT_FALSE(HasFailure()) << line;
  }
  EXPECT_GT(parsed, kRounds / 20);
  EXPECT_LT(parsed, kRounds - kRounds / 10);
}

}  // namespace
}  // namespace nanovllm
