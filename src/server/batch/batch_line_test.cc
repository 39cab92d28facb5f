#include "server/batch/batch_line.h"

#include <gtest/gtest.h>

#include "io/json.h"
#include "server/openai/json_body.h"

namespace nanovllm::server {
namespace {

std::string line_of(const std::string& members) { return "{" + members + "}"; }

const std::string kWhole =
    R"("custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"})";

std::string fault_of(const std::string& line, std::string_view code, int64_t number = 1) {
  const BatchRequest request = parse_batch_request(line, number);
  EXPECT_TRUE(request.fault) << line;
  if (!request.fault) return "";
  EXPECT_EQ(request.fault->code, code) << request.fault->message;
  EXPECT_EQ(request.url + request.body, "") << line;
  return request.fault->message;
}

TEST(BatchRequest, HasTheBodyAsItCame) {
  const std::string body = R"({ "prompt" : ["\u00e9}", 1e400, {"a": [true]}], "prompt": 01 })";
  const BatchRequest request = parse_batch_request(
      line_of(
          R"("body":)" + body +
          R"(, "url" : "\/v1\/chat\/completions","method":"POST","custom_id":"\u00e9\"", "x": [1])"),
      1);
  EXPECT_FALSE(request.fault);
  EXPECT_EQ(request.body, body);
  EXPECT_EQ(request.url, "/v1/chat/completions");
  EXPECT_EQ(request.custom_id, "\u00e9\"");
}

TEST(BatchRequest, MayHaveNoCustomId) {
  for (const char* member : {"", R"("custom_id": null,)"}) {
    const BatchRequest request = parse_batch_request(
        line_of(member + std::string(R"("method": "POST", "url": "/tokenize", "body": {})")), 1);
    EXPECT_FALSE(request.fault);
    EXPECT_FALSE(request.custom_id);
    EXPECT_EQ(request.url, "/tokenize");
  }
}

TEST(BatchRequest, IsForWhatMakesAnAnswerOfABody) {
  for (const char* url :
       {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
        "/v1/messages/count_tokens", "/tokenize", "/detokenize"}) {
    const BatchRequest request =
        parse_batch_request(fmt::format(R"({{"method":"POST","url":"{}","body":{{}}}})", url), 1);
    EXPECT_EQ(request.url, url);
  }
  for (const char* url : {"/v1/models", "/metrics", "/ping", "/health", "/v1/embeddings", "/", "",
                          "https://api.openai.com/v1/chat/completions", "/v1/completions/"}) {
    const std::string said =
        fault_of(fmt::format(R"({{"method":"POST","url":"{}","body":{{}}}})", url), "invalid_url");
    EXPECT_EQ(said,
              fmt::format("url must be one of /v1/completions, /v1/chat/completions, "
                          "/v1/responses, /v1/messages, /v1/messages/count_tokens, /tokenize, "
                          "/detokenize, got {}.",
                          url));
  }
}

TEST(BatchRequest, SaysWhatIsMissing) {
  EXPECT_FALSE(parse_batch_request(line_of(kWhole), 1).fault);
  for (const std::string name : {"method", "url", "body"}) {
    const auto without = Json::parse(line_of(kWhole));
    Json line = without;
    line.erase(name);
    EXPECT_NE(fault_of(line.dump(), "missing_required_parameter").find("no " + name + ";"),
              std::string::npos);
    EXPECT_EQ(parse_batch_request(line.dump(), 1).custom_id, "a");
  }
}

TEST(BatchRequest, SaysWhatIsOfAnotherType) {
  EXPECT_EQ(fault_of(R"({"custom_id": 5, "method": "POST"})", "invalid_request"),
            "custom_id must be a text, got 5.");
  EXPECT_EQ(fault_of(R"({"custom_id": "a", "method": ["POST"]})", "invalid_request"),
            R"(method must be a text, got ["POST"].)");
  EXPECT_EQ(fault_of(R"({"method": "POST", "url": {"a": 1}})", "invalid_request"),
            R"(url must be a text, got {"a": 1}.)");
  EXPECT_EQ(fault_of(R"({"method": "GET", "url": "/v1/models", "body": {}})", "invalid_method"),
            "method must be POST, got GET.");
}

TEST(BatchRequest, SaysWhereALineIsNoJson) {
  EXPECT_NE(fault_of(R"({"custom_id": "a)", "invalid_json_line", 17).find("line 17, column 17"),
            std::string::npos);
  for (const char* line : {"", "{", "nonsense", R"({"a": 1} 2)", R"({"a" 1})", "\"\xff\"",
                           R"({"custom_id": "a", "url": "\ud800"})"}) {
    EXPECT_NE(fault_of(line, "invalid_json_line").find("not valid JSON"), std::string::npos)
        << line;
  }
  for (const char* line : {"[]", "5", "null", "\"a\""}) {
    EXPECT_EQ(fault_of(line, "invalid_json_line"), "A line must be a JSON object.");
  }
  // Whose nesting is nobody's stack.
  EXPECT_EQ(parse_batch_request(std::string(1'000'000, '['), 1).fault->code,
            std::string_view("invalid_json_line"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(
      parse_batch_request(line_of(R"("method":"POST","url":"/tokenize","body":)" + deep), 1).body,
      deep);
}

TEST(BatchAnswer, IsOneLineOfOpenAis) {
  const HttpResponse response = {.body = "{\"text\":\"a\xe2\x80\xa8\xc2\x85z\\n\"}"};
  const std::string line = batch_answer({3, "n\"1"}, "id", response);
  EXPECT_EQ(line, R"({"id":"batch_req_3","custom_id":"n\"1","response":{"status_code":200,)"
                  R"("request_id":"id","body":{"text":"a\u2028\u0085z\n"}},"error":null})"
                  "\n");
  EXPECT_EQ(Json::parse(line)["response"]["body"], Json::parse(response.body));
}

TEST(BatchRequest, HasNoMemberTwice) {
  for (const std::string name : {"custom_id", "method", "url", "body"}) {
    const std::string line = line_of(kWhole + ", \"" + name + "\": \"again\"");
    EXPECT_EQ(fault_of(line, "invalid_json_line"),
              "the line: the key \"" + name + "\" appears twice in one object");
    EXPECT_FALSE(parse_batch_request(line, 1).custom_id);
  }
  EXPECT_FALSE(parse_batch_request(line_of(kWhole + R"(, "x": 1, "x": 2)"), 1).fault);
}

TEST(BatchRequest, MayHaveAByteOrderMark) {
  const BatchRequest request = parse_batch_request("\xEF\xBB\xBF" + line_of(kWhole), 1);
  EXPECT_FALSE(request.fault);
  EXPECT_EQ(request.custom_id, "a");
  EXPECT_EQ(request.body, R"({"prompt": "Hi"})");
  EXPECT_NE(fault_of("\xEF\xBB" + line_of(kWhole), "invalid_json_line").find("not valid JSON"),
            std::string::npos);
}

// Readers of OpenAI's find the error in the body, readers of vLLM's beside the response.
TEST(BatchAnswer, TellsARefusalTwice) {
  const HttpResponse response = error_response(400, "max_tokens must be at least 1.", "max_tokens");
  const Json line = Json::parse(batch_answer({0, std::nullopt}, "id", response));
  EXPECT_EQ(line["custom_id"], nullptr);
  EXPECT_EQ(line["response"]["status_code"], 400);
  EXPECT_EQ(line["response"]["body"]["error"]["param"], "max_tokens");
  EXPECT_EQ(line["error"], Json::parse(R"({"code": "BadRequestError",
                                           "message": "max_tokens must be at least 1."})"));
  const HttpResponse named = error_response(404, "No.", "", "", "not_there");
  EXPECT_EQ(Json::parse(batch_answer({0, "a"}, "id", named))["error"]["code"], "not_there");
}

TEST(BatchAnswer, HasNoResponseWhereNothingWasAsked) {
  const std::string line = batch_answer({7, "a"}, BatchFault{"invalid_url", "No \"url\"."});
  EXPECT_EQ(line, R"({"id":"batch_req_7","custom_id":"a","response":null,)"
                  R"("error":{"code":"invalid_url","message":"No \"url\"."}})"
                  "\n");
}

TEST(BatchAnswer, IsReadBack) {
  const auto good =
      read_batch_answer(batch_answer({12, "\u00e9"}, "id", HttpResponse{.body = "{}"}));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->place.index, 12);
  EXPECT_EQ(good->place.custom_id, "\u00e9");
  EXPECT_TRUE(good->was_asked);
  EXPECT_FALSE(good->has_failed);
  const auto refused = read_batch_answer(batch_answer({0, "a"}, "id", error_response(400, "No.")));
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->was_asked);
  EXPECT_TRUE(refused->has_failed);
  const auto fault = read_batch_answer(batch_answer({1, std::nullopt}, BatchFault{"a", "b"}));
  ASSERT_TRUE(fault);
  EXPECT_FALSE(fault->place.custom_id);
  EXPECT_FALSE(fault->was_asked);
  EXPECT_TRUE(fault->has_failed);
}

TEST(BatchAnswer, IsNoneOfOthers) {
  for (const char* line :
       {"", "{}", "[]", "mine", R"({"id": 5})", R"({"index": 0, "text": "generate's"})",
        R"({"id": "vllm-1", "custom_id": "a", "response": null, "error": null})",
        R"({"id": "batch_req_", "custom_id": "a"})", R"({"id": "batch_req_-1"})",
        R"({"id": "batch_req_1x"})", R"({"id": "batch_req_1", "custom_id": "a"})",
        R"({"id": "batch_req_1", "custom_id": "a", "response": null})",
        R"({"id": "batch_req_99999999999999999999"})", R"({"id": "batch_req_1", "custom_id": "a)",
        R"({"id": "batch_req_1"} {)"}) {
    EXPECT_FALSE(read_batch_answer(line)) << line;
  }
}

}  // namespace
}  // namespace nanovllm::server
