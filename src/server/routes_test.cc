#include "server/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/sampling_table.h"
#include "server/openai/request_fields.h"

namespace nanovllm::server {
namespace {

TEST(Routes, TakeTheirMethodsAndHeadForGet) {
  const Route& chat = *find_route("/v1/chat/completions");
  EXPECT_TRUE(chat.takes("POST"));
  for (const char* method : {"GET", "HEAD", "DELETE", "post"}) EXPECT_FALSE(chat.takes(method));
  const Route& ping = *find_route("/ping");
  for (const char* method : {"GET", "HEAD", "POST"}) EXPECT_TRUE(ping.takes(method));
  EXPECT_FALSE(ping.takes("PUT"));
  for (const char* path : {"/v1/models/a", "/v1/models/Qwen/Qwen3-0.6B"}) {
    ASSERT_NE(find_route(path), nullptr) << path;
    EXPECT_EQ(find_route(path)->operation.path, "/v1/models/{model}");
  }
  for (const char* path : {"/v1/models/", "/v1/models/a/", "/v1/modelsx", "/v1/messages/batches"}) {
    EXPECT_EQ(find_route(path), nullptr) << path;
  }
  EXPECT_EQ(find_route("/v1/chat"), nullptr);
  EXPECT_EQ(find_route(""), nullptr);
}

TEST(Routes, AreOpenWhereNothingIsToldOfAnybody) {
  const std::vector<std::string> open = open_paths();
  for (const char* path : {"", "/", "/app.js", "/health", "/ping", "/version"}) {
    EXPECT_EQ(std::ranges::count(open, path), 1) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/models", "/metrics", "/openapi.json"}) {
    EXPECT_EQ(std::ranges::count(open, path), 0) << path;
  }
}

TEST(Routes, SayWhatIsMissing) {
  EXPECT_NE(missing_path(kTokenizerInfo).find("--enable-tokenizer-info-endpoint"),
            std::string::npos);
  EXPECT_TRUE(missing_path("/v1/embeddings").starts_with("/v1/embeddings is an endpoint of vLLM"));
  EXPECT_TRUE(missing_path("/v1/responses/5").starts_with("Response with id '5' not found"));
  EXPECT_TRUE(missing_path("/v1/responsesx").starts_with("/v1/responsesx is not found"));
  EXPECT_TRUE(missing_path("/\n").starts_with("/? is not found"));
  EXPECT_TRUE(missing_path("/a").ends_with(
      "; there are /v1/completions, /v1/chat/completions, /v1/responses, /v1/messages, "
      "/v1/messages/count_tokens, /v1/models, /tokenize, /detokenize, /health, /ping, /version, "
      "/metrics and /openapi.json."));
}

TEST(Routes, HaveTheErrorsAndTheIdHeaderOfTheirApi) {
  const auto finished = [](const char* path, HttpResponse response) {
    HttpRequest request;
    request.path = path;
    request.id = "7";
    finish_answer(request, response);
    return response;
  };
  const HttpResponse error = error_response(404, "no", "model");
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"}) {
    const HttpResponse response = finished(path, error);
    EXPECT_EQ(response.body,
              R"({"type":"error","error":{"type":"not_found_error","message":"no"}})");
    ASSERT_EQ(response.headers.size(), 1u);
    EXPECT_EQ(response.headers[0], (std::pair<std::string, std::string>("request-id", "7")));
    EXPECT_EQ(finished(path, {.body = "x"}).body, "x");
  }
  for (const char* path : {"/v1/messagesx", "/v1/models", ""}) {
    EXPECT_EQ(finished(path, error).body, error.body);
    EXPECT_TRUE(finished(path, error).headers.empty());
  }
}

void collect_references(const Json& json, std::set<std::string>& references) {
  if (json.is_object() && json.contains("$ref")) references.insert(json["$ref"].get<std::string>());
  if (json.is_structured()) {
    for (const Json& item : json) collect_references(item, references);
  }
}

TEST(Routes, AreDescribedWithEveryParameterAndReference) {
  std::vector<Operation> operations;
  for (const Route& route : routes()) operations.push_back(route.operation);
  const Json document = Json::parse(openapi_body(operations));
  const Json& schemas = document["components"]["schemas"];
  for (const char* name : {"CompletionRequest", "ChatRequest"}) {
    for (const Parameter& parameter : sampling_table()) {
      EXPECT_TRUE(schemas[name]["properties"].contains(std::string(parameter.name)));
    }
  }
  std::set<std::string> references;
  collect_references(document, references);
  EXPECT_GE(references.size(), 9u);
  constexpr std::string_view kBase = "#/components/schemas/";
  for (const std::string& reference : references) {
    EXPECT_TRUE(reference.starts_with(kBase));
    EXPECT_TRUE(schemas.contains(reference.substr(kBase.size()))) << reference;
  }
  const Json& top_p = schemas["ChatRequest"]["properties"]["top_p"];
  EXPECT_EQ(top_p["exclusiveMinimum"], 0);
  EXPECT_EQ(top_p["maximum"], 1);
  EXPECT_EQ(top_p["type"].dump(), R"(["number","null"])");
  EXPECT_EQ(schemas["ChatRequest"]["properties"]["min_tokens"]["type"], "integer");
  const Json& seed = schemas["ChatRequest"]["properties"]["seed"];
  EXPECT_EQ(seed["minimum"].dump() + " " + seed["maximum"].dump(),
            "-9223372036854775808 9223372036854775807");
  EXPECT_EQ(document["paths"]["/v1/completions"]["post"]["responses"]["400"]["content"]
                    ["application/json"]["schema"]["$ref"],
            "#/components/schemas/ErrorResponse");
}

}  // namespace
}  // namespace nanovllm::server
