#include "server/openai/protocol.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/sampling_table.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

std::string refusal_of_body(const std::string& body) {
  const LetterModel model;
  const ApiError error = api_error_of([&] { parse_completion(body, model.served, "7"); });
  EXPECT_EQ(error.status(), 400) << body;
  return error.what();
}

TEST(Protocol, RefusesWhatIsNoJsonObject) {
  for (const char* body :
       {"", "{", "nothing", R"({"prompt":"a","seed":NaN})", R"({"seed":1e999})",
        "{\"prompt\":\"\xff\"}", R"({"prompt":"\ud800"})", R"({"prompt":"a",})"}) {
    EXPECT_TRUE(refusal_of_body(body).starts_with("The body: not valid JSON: ")) << body;
  }
  EXPECT_EQ(refusal_of_body("[1]"), "The body must be a JSON object, got an array.");
  EXPECT_EQ(refusal_of_body("3"), "The body must be a JSON object, got 3.");
  EXPECT_EQ(refusal_of_body(R"({"a":1,"prompt":"a","a":2})"),
            "The body: the key \"a\" appears twice in one object");
  EXPECT_EQ(refusal_of_body(R"({"x":{"a":1,"a":2}})"),
            "The body: the key \"a\" appears twice in one object");
}

TEST(Protocol, BoundsDepth) {
  LetterModel model;
  model.served.max_json_depth = 5;
  const auto body = [](int lists) {
    return R"({"prompt":"a","x":)" + std::string(lists, '[') + std::string(lists, ']') + "}";
  };
  EXPECT_NO_THROW(parse_completion(body(4), model.served, "7"));
  EXPECT_STREQ(api_error_of([&] { parse_completion(body(5), model.served, "7"); }).what(),
               "The body: JSON nested deeper than 5 levels (--max-json-depth of serve)");
  EXPECT_NE(refusal_of_body(std::string(1'000'000, '[')), "");
}

TEST(Protocol, ParsesBombsInLinearTime) {
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += fmt::format("\"{}\":0,", i);
  const Json body = parse_json_body(keys + R"("last":{"b":1,"a":[true,null,1.5,"x"]}})");
  EXPECT_EQ(body.size(), 100'001u);
  EXPECT_EQ(body["last"].dump(), R"({"b":1,"a":[true,null,1.5,"x"]})");
  std::string zeros = "[0";
  for (int i = 0; i < (4 << 20); ++i) zeros += ",0";
  EXPECT_THROW(parse_json_body(zeros + "]"), Error);
}

TEST(Protocol, WritesErrorsAsVllmDoes) {
  EXPECT_EQ(error_body(400, "No.", "n"),
            R"({"error":{"message":"No.","type":"BadRequestError","param":"n","code":400}})");
  EXPECT_EQ(error_body(404, "\xff"),
            "{\"error\":{\"message\":\"\uFFFD\",\"type\":\"NotFoundError\","
            "\"param\":null,\"code\":404}}");
  EXPECT_EQ(status_of(ErrorCode::kUnsupported), 400);
  EXPECT_EQ(status_of(ErrorCode::kUnavailable), 503);
  EXPECT_EQ(status_of(ErrorCode::kOutOfMemory), 500);
}

TEST(Protocol, Tokenizes) {
  const LetterModel model;
  EXPECT_EQ(tokenize_body(R"({"prompt":"ab"})", model.served),
            R"({"count":2,"max_model_len":100,"tokens":[0,1],"token_strs":null})");
  EXPECT_EQ(tokenize_body(R"({"prompt":"","return_token_strs":false})", model.served),
            R"({"count":0,"max_model_len":100,"tokens":[],"token_strs":null})");
  EXPECT_EQ(
      tokenize_body(R"({"messages":[{"role":"user","content":"b"}],"return_token_strs":true})",
                    model.served),
      R"({"count":3,"max_model_len":100,"tokens":[1,49,32],"token_strs":["b","X","G"]})");
  for (const char* body : {"{}", R"({"prompt":3})", R"({"prompt":["a"]})", R"({"messages":[]})",
                           R"({"prompt":"a","add_special_tokens":3})"}) {
    EXPECT_EQ(api_error_of([&] { tokenize_body(body, model.served); }).status(), 400) << body;
  }
  const auto other = [&] { tokenize_body(R"({"prompt":"a","model":"m"})", model.served); };
  EXPECT_EQ(api_error_of(other).status(), 404);
}

// There is no call to find.
TEST(Protocol, TokenizesToolsOfAModelWhoseCallsHaveNoParser) {
  const LetterModel model;
  const std::string head = R"({"messages":[{"role":"user","content":"b"}],"tools":)";
  const std::string one = R"([{"type":"function","function":{"name":"cd"}}])";
  const char* tokens =
      R"({"count":5,"max_model_len":100,"tokens":[1,49,2,3,32],"token_strs":null})";
  EXPECT_EQ(tokenize_body(head + one + "}", model.served), tokens);
  for (const char* choice : {"\"auto\"", "\"none\"", "\"required\""}) {
    EXPECT_EQ(
        tokenize_body(fmt::format(R"({}{},"tool_choice":{}}})", head, one, choice), model.served),
        tokens);
  }
  const auto nameless = [&] { tokenize_body(head + R"([{"function":{}}]})", model.served); };
  EXPECT_EQ(api_error_of(nameless).status(), 400);
}

TEST(Protocol, Detokenizes) {
  const LetterModel model;
  EXPECT_EQ(detokenize_body(R"({"tokens":[1]})", model.served), R"({"prompt":"b"})");
  EXPECT_EQ(detokenize_body(R"({"tokens":[]})", model.served), R"({"prompt":""})");
  EXPECT_EQ(detokenize_body(R"({"tokens":[49]})", model.served), R"({"prompt":"X"})");
  for (const char* body : {"{}", R"({"tokens":3})", R"({"tokens":["a"]})", R"({"tokens":[-1]})",
                           R"({"tokens":[50]})", R"({"tokens":[1.5]})"}) {
    EXPECT_EQ(api_error_of([&] { detokenize_body(body, model.served); }).param(), "tokens") << body;
  }
}

TEST(Protocol, SaysWhatItCanNotDoWithoutATokenizer) {
  LetterModel model;
  model.served.preparer.tokenizer = nullptr;
  const auto status = [](const auto& call) { return api_error_of(call).status(); };
  EXPECT_EQ(status([&] { tokenize_body(R"({"prompt":"ab"})", model.served); }), 400);
  EXPECT_EQ(status([&] { detokenize_body(R"({"tokens":[1]})", model.served); }), 400);
  EXPECT_EQ(status([&] { parse_completion(R"({"prompt":"a"})", model.served, ""); }), 400);
  const auto call =
      parse_completion(R"({"prompt":[1],"echo":true,"logprobs":1})", model.served, "");
  PromptLogprobs prompt;
  prompt.positions = {std::nullopt};
  RequestDelta output = delta(0, "", {3});
  output.logprobs = {{TokenLogprob{.token_id = 3, .logprob = -1, .rank = 1, .decoded_token = {}}}};
  const std::vector<EngineEvent> events = {prompt, output, end(0)};
  call->on_events(0, events);
  EXPECT_EQ(Json::parse(call->finish())["choices"][0]["logprobs"]["tokens"].dump(),
            R"(["token_id:1","token_id:3"])");
}

TEST(Protocol, ListsModels) {
  LetterModel model;
  model.served.created = 5;
  const Json list = Json::parse(models_body(model.served));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][1]["id"], "alias");
  EXPECT_EQ(list["data"][0]["max_model_len"], 100);
  EXPECT_EQ(list["data"][0]["permission"][0]["created"], 5);
  model.served.preparer.info.num_kvcache_blocks = 3;  // 48 tokens; the last one needs no room
  EXPECT_EQ(Json::parse(model_body(model.served, "alias"))["max_model_len"], 49);
  EXPECT_FALSE(Json::parse(version_body())["version"].get<std::string>().empty());
}

TEST(Protocol, TellsTheTokenizerAsVllmDoes) {
  const std::string config =
      R"({"bos_token":{"__type":"AddedToken","content":"<s>","lstrip":false},"eos_token":"</s>",)"
      R"("added_tokens_decoder":{"1":{"content":"<s>","special":true}},"vocab_file":"a",)"
      R"("merges_file":"b","tokenizer_class":"Qwen2Tokenizer","chat_template":"old"})";
  EXPECT_EQ(tokenizer_info_body(config, "new"),
            R"({"bos_token":"<s>","eos_token":"</s>","added_tokens_decoder":{"1":"<s>"},)"
            R"("tokenizer_class":"Qwen2Tokenizer","chat_template":"new"})");
  EXPECT_EQ(tokenizer_info_body(R"({"content":[{"x":{"content":1}}]})", ""),
            R"({"content":[{"x":1}],"tokenizer_class":"PreTrainedTokenizerFast"})");
  EXPECT_EQ(tokenizer_info_body("", "t"),
            R"({"tokenizer_class":"PreTrainedTokenizerFast","chat_template":"t"})");
}

}  // namespace
}  // namespace nanovllm::server
