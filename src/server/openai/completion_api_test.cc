#include <gtest/gtest.h>

#include <limits>

#include "server/openai/protocol_testing.h"
#include "server/openai/request_fields.h"
#include "text/testing.h"

namespace nanovllm::server {
namespace {

std::unique_ptr<ApiCall> completion(const LetterModel& model, const std::string& body) {
  return parse_completion(body, model.served, "7");
}

std::string refused_param(const std::string& body, const std::string& message_part) {
  const LetterModel model;
  const ApiError error = api_error_of([&] { completion(model, body); });
  EXPECT_EQ(error.status(), 400) << body;
  EXPECT_NE(std::string(error.what()).find(message_part), std::string::npos) << error.what();
  return error.param();
}

TEST(CompletionApi, TakesEveryKindOfPrompt) {
  const LetterModel model;
  const auto ids = [&](const std::string& prompt) {
    std::vector<Ids> list;
    const auto call = completion(model, R"({"prompt":)" + prompt + "}");
    for (const AddRequest& request : call->requests) list.push_back(request.prompt_token_ids);
    return list;
  };
  EXPECT_EQ(ids(R"("bc")"), (std::vector<Ids>{{1, 2}}));
  EXPECT_EQ(ids(R"(["bc","d"])"), (std::vector<Ids>{{1, 2}, {3}}));
  EXPECT_EQ(ids("[3,4]"), (std::vector<Ids>{{3, 4}}));
  EXPECT_EQ(ids("[3.0,4]"), (std::vector<Ids>{{3, 4}}));
  EXPECT_EQ(ids("[[3,4],[5]]"), (std::vector<Ids>{{3, 4}, {5}}));
}

TEST(CompletionApi, RefusesOtherPrompts) {
  for (const char* prompt :
       {"null", "\"\"", "[]", "3", "{}", "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]", "[true]", "[-1]",
        "[1.5]", "[3000000000]", "[[\"a\"]]", "[[1],[2.5]]"}) {
    EXPECT_EQ(refused_param(fmt::format("{{\"prompt\":{}}}", prompt), "prompt"), "prompt")
        << prompt;
  }
  EXPECT_EQ(refused_param("{}", "prompt must be given"), "prompt");
  EXPECT_EQ(refused_param(R"({"prompt":["a",""]})", "cannot be empty"), "");
  EXPECT_EQ(refused_param(R"({"prompt":[50]})", "out of vocabulary"), "");
}

TEST(CompletionApi, BoundsPromptsAndCompletions) {
  LetterModel model;
  model.served.max_num_prompts = 2;
  EXPECT_EQ(completion(model, R"({"prompt":["a","b"]})")->requests.size(), 2u);
  EXPECT_EQ(api_error_of([&] { completion(model, R"({"prompt":["a","b","c"]})"); }).param(),
            "prompt");
  EXPECT_EQ(completion(model, R"({"prompt":["a","b"],"n":8192})")->requests.size(), 2u);
  EXPECT_EQ(api_error_of([&] { completion(model, R"({"prompt":["a","b"],"n":8193})"); }).param(),
            "n");
}

TEST(CompletionApi, ReadsParameters) {
  LetterModel model;
  model.served.defaults.top_k = 5;
  const auto params = [&](const std::string& fields) {
    return completion(model, R"({"prompt":"a")" + fields + "}")->requests[0].params;
  };
  EXPECT_EQ(params("").max_tokens, 16);
  EXPECT_EQ(params("").top_k, 5);
  EXPECT_EQ(params(R"(,"max_tokens":null)").max_tokens, 16);
  EXPECT_EQ(params(R"(,"max_tokens":7.0)").max_tokens, 7);
  EXPECT_EQ(params(R"(,"temperature":null)").temperature, 1.0);
  EXPECT_EQ(params(R"(,"seed":5,"stop":"b","n":2,"top_k":3)").seed, 5);
  EXPECT_EQ(params(R"(,"stop":["b","c"])").stop, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(params(R"(,"logit_bias":{"3":1})").logit_bias.at(3), 1);
  std::string words = R"(,"bad_words":["b")";
  for (size_t i = 1; i < kMaxBadWords; ++i) words += R"(,"b")";
  EXPECT_EQ(params(words + "]").bad_words.size(), kMaxBadWords);
  EXPECT_EQ(params(R"(,"allowed_token_ids":[3,4])").allowed_token_ids, (Ids{3, 4}));
  EXPECT_EQ(params(R"(,"allowed_token_ids":null)").allowed_token_ids, std::nullopt);
  EXPECT_EQ(params(R"(,"cache_salt":"s")").cache_salt, "s");
  EXPECT_EQ(params(R"(,"cache_salt":null)").cache_salt, std::nullopt);
  EXPECT_EQ(params(R"(,"echo":true,"logprobs":2)").prompt_logprobs, 2);
  EXPECT_EQ(params(R"(,"echo":true,"max_tokens":0)").max_tokens, 1);
  EXPECT_EQ(params("").output_kind, RequestOutputKind::kDelta);
}

TEST(CompletionApi, NamesTheFieldThatIsWrong) {
  const auto param = [](const std::string& field, const std::string& part) {
    return refused_param(R"({"prompt":"a",)" + field + "}", part);
  };
  EXPECT_EQ(param(R"("temperature":"hot")", "must be a number"), "temperature");
  EXPECT_EQ(param(R"("temperature":-1)", "non-negative"), "temperature");
  EXPECT_EQ(param(R"("max_tokens":0)", "at least 1"), "max_tokens");
  EXPECT_EQ(param(R"("max_tokens":-1,"echo":true)", "at least 1"), "max_tokens");
  EXPECT_EQ(param(R"("max_tokens":101)", "max_tokens=101 cannot be greater than max_model_len=100"),
            "max_tokens");
  EXPECT_EQ(param(R"("max_tokens":5,"min_tokens":6)", "min_tokens must be"), "min_tokens");
  EXPECT_EQ(param(R"("n":0)", "n must be at least 1"), "n");
  EXPECT_EQ(param(R"("n":99999)", "n must be at most"), "n");
  EXPECT_EQ(param(R"("n":2,"temperature":0)", "greedy"), "n");
  EXPECT_EQ(param(R"("logprobs":21)", "greater than max allowed"), "logprobs");
  EXPECT_EQ(param(R"("prompt_logprobs":21)", "greater than max allowed"), "prompt_logprobs");
  EXPECT_EQ(param(R"("priority":1)", "Priority scheduling is not enabled"), "priority");
  EXPECT_EQ(param(R"("seed":9223372036854775808)", "from -9223372036854775808"), "seed");
  EXPECT_EQ(param(R"("seed":-9223372036854775809)", "an integer of 64 bits"), "seed");
  EXPECT_EQ(param(R"("seed":18446744073709551616)", "an integer of 64 bits"), "seed");
  EXPECT_EQ(param(R"("seed":1.5)", "seed must be an integer, got 1.5."), "seed");
  EXPECT_EQ(param(R"("logit_bias":{"50":1})", "logit_bias"), "logit_bias");
  EXPECT_EQ(param(R"("allowed_token_ids":[49,50])", "[50] in"), "allowed_token_ids");
  EXPECT_EQ(param(R"("allowed_token_ids":[])", "must not be empty"), "allowed_token_ids");
  EXPECT_EQ(param(R"("stop":[""])", "empty"), "stop");
  EXPECT_EQ(param(R"("stop":["a","b","c","d","e"])", "may hold 4 texts, got 5"), "stop");
  std::string words = R"("bad_words":["b")";
  for (size_t i = 0; i < kMaxBadWords; ++i) words += R"(,"b")";
  EXPECT_EQ(param(words + "]", "bad_words may hold 4096 texts, got 4097"), "bad_words");
  EXPECT_EQ(param(R"("stream":1)", "true or false"), "stream");
  EXPECT_EQ(param(R"("stream_options":{"include_usage":true})", "Stream options"),
            "stream_options");
  EXPECT_EQ(param(R"("stream":true,"stream_options":{"include_usage":3})", "include_usage"),
            "stream_options");
  EXPECT_EQ(param(R"("stream":true,"prompt_logprobs":1)", "not available"), "prompt_logprobs");
  EXPECT_EQ(param(R"("model":3)", "must be a text"), "model");
  EXPECT_EQ(param(R"("priority":9e99)", "integer"), "priority");
}

TEST(CompletionApi, RefusesWhatWouldChangeTheAnswer) {
  for (const char* field :
       {R"("suffix":"b")", R"("best_of":2)", R"("best_of":3,"n":2)", R"("use_beam_search":true)",
        R"("guided_json":{"a":1})", R"("truncate_prompt_tokens":3)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find(':') - 2);
    EXPECT_EQ(refused_param(fmt::format(R"({{"prompt":"a",{}}})", field), name), name);
  }
  const LetterModel model;
  EXPECT_NO_THROW(completion(model,
                             R"({"prompt":"a","suffix":null,"best_of":1,"guided_regex":null,)"
                             R"("use_beam_search":false,"response_format":{"type":"text"}})"));
  EXPECT_NO_THROW(completion(model, R"({"prompt":"a","best_of":3,"n":3})"));
}

TEST(CompletionApi, TakesWhatTheOutputMustFollow) {
  using P = StructuredOutputsParams;
  const LetterModel model;
  const auto asked = [&](const std::string& field) {
    const auto call = completion(model, R"({"prompt":["a","b"],)" + field + "}");
    for (const AddRequest& request : call->requests) {
      EXPECT_EQ(request.grammar != nullptr, request.params.structured_outputs.has_value());
      EXPECT_EQ(request.grammar, call->requests[0].grammar);  // compiled once
    }
    return call->requests[0].params.structured_outputs;
  };
  EXPECT_EQ(asked(R"("structured_outputs":{"regex":"a+","json":null})"), P{.regex = "a+"});
  EXPECT_EQ(asked(R"("structured_outputs":{"choice":["a","b"]})"), (P{.choice = {{"a", "b"}}}));
  EXPECT_EQ(asked(R"("structured_outputs":{"grammar":"root ::= [a-z]"})"),
            P{.grammar = "root ::= [a-z]"});
  EXPECT_EQ(asked(R"("structured_outputs":{"json_object":true,"disable_any_whitespace":true})"),
            (P{.json_object = true, .disable_any_whitespace = true}));
  const std::string schema = R"({"properties":{"z":{"type":"null"},"a":{"minimum":1}}})";
  EXPECT_EQ(asked(R"("structured_outputs":{"json":)" + schema + "}"), P{.json = schema});
  EXPECT_EQ(asked(R"("structured_outputs":{"json":)" + Json(schema).dump() + "}"),
            P{.json = schema});
  EXPECT_EQ(asked(R"("response_format":{"type":"json_schema","json_schema":{"name":"n",)"
                  R"("strict":true,"schema":)" +
                  schema + "}}"),
            P{.json = schema});
  EXPECT_EQ(asked(R"("response_format":{"type":"json_object"})"), P{.json_object = true});
  EXPECT_EQ(asked(R"("structured_outputs":null,"response_format":{"type":"text"})"), std::nullopt);
}

TEST(CompletionApi, NamesTheFieldWhoseConstraintIsWrong) {
  const auto param = [](const std::string& field, const std::string& part) {
    return refused_param(R"({"prompt":"a",)" + field + "}", part);
  };
  const std::string own = "structured_outputs";
  const std::pair<const char*, const char*> of_own[] = {
      {R"({"json":{},"regex":"a"})", "multiple are specified: json, regex."},
      {R"({})", "none are specified"},
      {R"({"json":"{"})", "JSON"},
      {R"({"json":{"properties":{"a":{"type":"odd"}}}})", "/properties/a"},
      {R"({"json":{"allOf":[{"const":1},{"const":2}]}})", "can't be satisfied"},
      {R"({"regex":"a(b"})", "(at position 1)."},
      {R"({"grammar":"root ::= other"})", "the rule \"other\" is not defined."},
      {R"({"choice":[]})", "must not be empty."},
      {R"({"choice":"a"})", "must be a list, got \"a\"."},
      {R"({"lark":"a"})", "structured_outputs has no \"lark\""},
  };
  for (const auto& [value, part] : of_own) {
    EXPECT_EQ(param("\"structured_outputs\":" + std::string(value), part), own) << value;
  }
  const std::string format = "response_format";
  const std::pair<const char*, const char*> of_format[] = {
      {R"({})", "response_format.type must be given."},
      {R"({"type":"xml"})", "response_format.type must be one of"},
      {R"({"type":"json_schema"})", "response_format.json_schema must be given"},
      {R"({"type":"json_schema","json_schema":{"schema":{"not":{}}}})", "not can't be enforced"},
      {R"({"type":"json_object"},"structured_outputs":{"regex":"a"})", "leave one of them out"},
  };
  for (const auto& [value, part] : of_format) {
    EXPECT_EQ(param("\"response_format\":" + std::string(value), part), format) << value;
  }
  EXPECT_EQ(param(R"("guided_regex":"a")", "use structured_outputs, or response_format."),
            "guided_regex");

  LetterModel model;
  model.served.preparer.tokenizer = nullptr;
  model.served.preparer.grammars = nullptr;
  const ApiError error = api_error_of(
      [&] { completion(model, R"({"prompt":[1],"response_format":{"type":"json_object"}})"); });
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.param(), "response_format");
  EXPECT_STREQ(
      error.what(),
      "structured_outputs need a tokenizer, and letters has no tokenizer; leave them out.");
}

TEST(CompletionApi, RefusesWhatWouldBindAnAnswerElsewhere) {
  for (const char* field :
       {R"("json_schema":{"type":"object"})", R"("grammar":"root ::= [a-z]")", R"("regex":"a")",
        R"("ebnf":"a")", R"("structured_output":{"regex":"a"})", R"("guided_choice":["a"])",
        R"("output_format":{"type":"json_schema","schema":{}})",
        R"("text":{"format":{"type":"json_object"}})",
        R"("output_config":{"format":{"type":"json_schema"}})"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find(':') - 2);
    EXPECT_EQ(refused_param(fmt::format(R"({{"prompt":"a",{}}})", field),
                            name + " is not known; use structured_outputs, or response_format."),
              name);
  }
  const LetterModel model;
  const auto call = completion(
      model, R"({"prompt":"a","grammar":"","json_schema":null,"text":{"verbosity":"low"},)"
             R"("output_config":{"format":null,"effort":"low"},"output_format":{"type":"text"}})");
  EXPECT_EQ(call->ignored_fields,
            (std::vector<std::string>{"text", "output_config", "output_format"}));
}

TEST(CompletionApi, TellsFieldsThatNobodyKnows) {
  const LetterModel model;
  const auto call =
      completion(model, R"({"prompt":"a","user":"u","model":"alias","foo":1,"bar":{}})");
  EXPECT_EQ(call->ignored_fields, (std::vector<std::string>{"foo", "bar"}));
}

TEST(CompletionApi, RefusesOtherModels) {
  const LetterModel model;
  const ApiError error = api_error_of([&] { completion(model, R"({"prompt":"a","model":"m"})"); });
  EXPECT_EQ(error.status(), 404);
  EXPECT_STREQ(error.what(), "The model `m` does not exist. Valid aliases: letters, alias.");
  EXPECT_EQ(error.param(), "model");
  EXPECT_NO_THROW(completion(model, R"({"prompt":"a","model":null})"));
}

TEST(CompletionApi, SaysHowMuchFits) {
  const LetterModel model;
  const auto body = [](int length) { return R"({"prompt":")" + std::string(length, 'a') + "\"}"; };
  EXPECT_NO_THROW(completion(model, body(99)));
  EXPECT_NE(
      std::string(api_error_of([&] { completion(model, body(100)); }).what()).find("at least 1"),
      std::string::npos);
  const ApiError error = api_error_of([&] { completion(model, body(101)); });
  EXPECT_TRUE(std::string(error.what())
                  .starts_with("This model's maximum context length is 100 tokens. However, your "
                               "prompt contains at least 101 input"));
  EXPECT_EQ(error.param(), "input_tokens");
  const auto ids = [](int length) {
    return fmt::format(R"({{"prompt":[{}]}})", fmt::join(Ids(length, 7), ","));
  };
  EXPECT_NO_THROW(completion(model, ids(99)));
  EXPECT_EQ(refused_param(ids(101), "your prompt contains 101 input tokens"), "input_tokens");
}

TEST(CompletionApi, RefusesTextThatIsTooLongWhateverItsTokensAre) {
  LetterModel model;
  const auto tokenizer = text::make_tokenizer(text::byte_level_json());
  model.served.preparer.tokenizer = tokenizer.get();
  model.served.preparer.info.vocab_size = tokenizer->vocab_size();
  ASSERT_EQ(tokenizer->max_bytes_per_token(), 7u);
  const auto text_of = [](size_t count, const char* more) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "<|end|>";
    return R"({"prompt":")" + text + more + "\"}";
  };
  EXPECT_EQ(completion(model, text_of(99, ""))->requests[0].prompt_token_ids.size(), 99u);
  const auto error_of = [&](const std::string& body) {
    return api_error_of([&] { completion(model, body); });
  };
  EXPECT_EQ(error_of(text_of(99, "<|end|")).param(), "input_tokens");  // 700 bytes but one
  EXPECT_EQ(error_of(text_of(99, "<|end|>")).param(), "");             // 100 tokens and no more
  const ApiError error = error_of(text_of(100, "a"));
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.param(), "input_text");
  EXPECT_EQ(std::string(error.what()),
            "This model's maximum context length is 100 tokens, which no text of more than 700 "
            "bytes fits in. However, your prompt has 701 bytes. Please reduce the length of the "
            "input prompt.");
  EXPECT_EQ(Json::parse(tokenize_body(text_of(100, ""), model.served))["count"], 100);
  EXPECT_EQ(api_error_of([&] { tokenize_body(text_of(100, "a"), model.served); }).param(),
            "input_text");
}

TEST(CompletionApi, AnswersWhole) {
  const LetterModel model;
  const auto call = completion(model, R"({"prompt":["a","bc"],"n":2})");
  EXPECT_FALSE(call->stream);
  const auto tell = [&](size_t prompt, std::vector<EngineEvent> events) {
    EXPECT_EQ(call->on_events(prompt, events), "");
  };
  tell(1, {delta(0, "x", {23}), delta(1, "y", {24}), end(1)});
  tell(0, {delta(0, "p", {15}), delta(1, "q", {16}), end(1, FinishReason::kStop, 16)});
  tell(0, {delta(0, "r", {17}), end(0, FinishReason::kLength), StepStats{}});
  EXPECT_FALSE(call->is_over());
  tell(1, {end(0, FinishReason::kStop, "s")});
  EXPECT_TRUE(call->is_over());
  Json answer = Json::parse(call->finish());
  EXPECT_GT(answer["created"].get<int64_t>(), 1'600'000'000);
  answer["created"] = 0;
  const auto choice = [](int index, const char* text, const char* reason, const char* stop) {
    return fmt::format(
        R"({{"index":{},"text":"{}","logprobs":null,"finish_reason":"{}","stop_reason":{},)"
        R"("token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}})",
        index, text, reason, stop);
  };
  EXPECT_EQ(
      answer.dump(),
      R"({"id":"cmpl-7","object":"text_completion","created":0,"model":"letters","choices":[)" +
          choice(0, "pr", "length", "null") + ',' + choice(1, "q", "stop", "16") + ',' +
          choice(2, "x", "stop", "\"s\"") + ',' + choice(3, "y", "stop", "null") +
          R"(],"service_tier":null,"system_fingerprint":"fp","usage":{"prompt_tokens":3,)"
          R"("total_tokens":8,"completion_tokens":5,"prompt_tokens_details":null,)"
          R"("completion_tokens_details":null},"kv_transfer_params":null,)"
          R"("ec_transfer_params":null,"metrics":null})");
}

TEST(CompletionApi, Streams) {
  const LetterModel model;
  const auto call = completion(
      model,
      R"({"prompt":"ab","stream":true,"request_id":"r","stream_options":{"include_usage":true,)"
      R"("continuous_usage_stats":true}})");
  std::vector<EngineEvent> events = {delta(0, "x", {23})};
  std::string text = call->on_events(0, events);
  events = {delta(0, "\u00e9", {24, 25}), end(0, FinishReason::kLength)};
  text += call->on_events(0, events);
  text += call->finish();
  std::vector<Json> chunks = chunks_of(text);
  ASSERT_EQ(chunks.size(), 4u);
  for (size_t i = 0; i < 3; ++i) chunks[i].erase("created");
  EXPECT_EQ(chunks[0].dump(),
            R"({"id":"cmpl-r","object":"text_completion","model":"letters","choices":[{"index":0,)"
            R"("text":"x","logprobs":null,"finish_reason":null,"stop_reason":null,)"
            R"("prompt_token_ids":null,"token_ids":null}],"usage":{"prompt_tokens":2,)"
            R"("total_tokens":3,"completion_tokens":1}})");
  EXPECT_EQ(chunks[1].dump(),
            R"({"id":"cmpl-r","object":"text_completion","model":"letters","choices":[{"index":0,)"
            R"("text":")"
            "\u00e9"
            R"(","logprobs":null,"finish_reason":"length","stop_reason":null,)"
            R"("prompt_token_ids":null,"token_ids":null}],"usage":{"prompt_tokens":2,)"
            R"("total_tokens":5,"completion_tokens":3}})");
  EXPECT_EQ(chunks[2].dump(),
            R"({"id":"cmpl-r","object":"text_completion","model":"letters","choices":[],)"
            R"("usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3},)"
            R"("system_fingerprint":"fp"})");
  EXPECT_EQ(chunks[3], "[DONE]");
}

// Python's splitlines() ends lines at these.
TEST(CompletionApi, EscapesWhatSomeTakeForEndsOfLinesInStreams) {
  const std::string text = "a\u0085b\u2028c\u2029d\u2027\u00c2\u0086";
  const std::vector<EngineEvent> events = {delta(0, text, {1}), end(0, FinishReason::kStop, text)};
  const LetterModel model;
  const auto streamed = completion(model, R"({"prompt":"a","stream":true})");
  const std::string stream = streamed->on_events(0, events) + streamed->finish();
  for (const char* character : {"\u0085", "\u2028", "\u2029"}) {
    EXPECT_EQ(stream.find(character), std::string::npos);
  }
  EXPECT_NE(stream.find("\u2027\u00c2\u0086"), std::string::npos);
  const Json choice = chunks_of(stream).front()["choices"][0];
  EXPECT_EQ(choice["text"], text);
  EXPECT_EQ(choice["stop_reason"], text);
  const auto whole = completion(model, R"({"prompt":"a"})");
  whole->on_events(0, events);
  EXPECT_NE(whole->finish().find(text), std::string::npos);
}

TEST(CompletionApi, EndsABrokenStreamWithTheError) {
  const LetterModel model;
  const auto call = completion(model, R"({"prompt":["a","b"],"stream":true})");
  const std::vector<EngineEvent> events = {
      delta(0, "x", {23}),
      RequestError{.id = 0, .code = ErrorCode::kInternal, .message = "It broke."}};
  std::string text = call->on_events(1, events);
  text += call->finish();
  const std::vector<Json> chunks = chunks_of(text);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks[1].dump(), R"({"error":{"message":"It broke.","type":"InternalServerError",)"
                              R"("param":null,"code":500}})");
  EXPECT_EQ(chunks[2], "[DONE]");
  EXPECT_TRUE(call->is_over());
}

TEST(CompletionApi, ThrowsWhereAWholeAnswerBroke) {
  const LetterModel model;
  const auto call = completion(model, R"({"prompt":"a"})");
  const std::vector<EngineEvent> events = {
      RequestError{.id = 0, .code = ErrorCode::kUnavailable, .message = "Gone."}};
  call->on_events(0, events);
  EXPECT_TRUE(call->is_over());
  EXPECT_EQ(api_error_of([&] { call->finish(); }).status(), 503);
}

TEST(CompletionApi, EchoesThePromptWithItsLogprobs) {
  const LetterModel model;
  PromptLogprobs prompt;
  prompt.positions = {std::nullopt,
                      PositionLogprobs{logprob(1, -0.5, 2, "b"), logprob(2, -0.25, 1, "c")}};
  RequestDelta output = delta(0, "d", {3});
  output.logprobs = {{logprob(3, -std::numeric_limits<float>::infinity(), 9, "d"),
                      logprob(4, -1, 1, "e"), logprob(5, -2, 2, "f")}};
  for (const bool only : {false, true}) {
    const auto call = completion(
        model,
        fmt::format(R"({{"prompt":"ab","echo":true,"logprobs":1,"max_tokens":{}}})", only ? 0 : 1));
    const std::vector<EngineEvent> events = {prompt, output, end(0, FinishReason::kLength)};
    call->on_events(0, events);
    const Json choice = Json::parse(call->finish())["choices"][0];
    EXPECT_EQ(choice["text"], only ? "ab" : "abd");
    EXPECT_EQ(choice["logprobs"].dump(),
              only ? R"({"text_offset":[0,1],"token_logprobs":[null,-0.5],"tokens":["a","b"],)"
                     R"("top_logprobs":[null,{"b":-0.5,"c":-0.25}]})"
                   : R"({"text_offset":[0,1,2],"token_logprobs":[null,-0.5,-9999.0],)"
                     R"("tokens":["a","b","d"],"top_logprobs":[null,{"b":-0.5,"c":-0.25},)"
                     R"({"d":-9999.0,"e":-1.0}]})");
    EXPECT_EQ(choice["prompt_logprobs"].dump(),
              R"([null,{"1":{"logprob":-0.5,"rank":2,"decoded_token":"b"},)"
              R"("2":{"logprob":-0.25,"rank":1,"decoded_token":"c"}}])");
    EXPECT_EQ(choice["finish_reason"], "length");
  }
}

TEST(CompletionApi, EchoesIdsAsText) {
  const LetterModel model;
  const auto call = completion(model, R"({"prompt":[[1,2],[3]],"echo":true,"stream":true,"n":2})");
  const std::vector<EngineEvent> events = {delta(0, "x", {23}), delta(1, "y", {24})};
  std::string text = call->on_events(0, events);
  text += call->on_events(0, events);
  const std::vector<Json> chunks = chunks_of(text);
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "b cx");
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "b cy");
  EXPECT_EQ(chunks[2]["choices"][0]["text"], "x");
  EXPECT_EQ(chunks[0]["choices"][0]["prompt_token_ids"].dump(), "[1,2]");
}

TEST(CompletionApi, ReturnsIdsWhereAskedFor) {
  LetterModel model;
  model.served.enable_prompt_tokens_details = true;
  const auto call = completion(model, R"({"prompt":"bc","return_token_ids":true,"logprobs":0,)"
                                      R"("return_tokens_as_token_ids":true})");
  RequestDelta output = delta(0, "d", {3});
  output.logprobs = {{logprob(3, -1, 1, "d")}};
  RequestEnd over = end(0);
  over.num_cached_tokens = 1;
  const std::vector<EngineEvent> events = {output, over};
  call->on_events(0, events);
  const Json answer = Json::parse(call->finish());
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"].dump(), "[3]");
  EXPECT_EQ(choice["prompt_token_ids"].dump(), "[1,2]");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["token_id:3"])");
  EXPECT_EQ(choice["logprobs"]["top_logprobs"].dump(), R"([{"token_id:3":-1.0}])");
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

}  // namespace
}  // namespace nanovllm::server
