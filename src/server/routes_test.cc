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
  EXPECT_TRUE(
      missing_path("/v1/responses/5").starts_with("/v1/responses/5 is an endpoint of vLLM"));
  EXPECT_TRUE(missing_path("/v1/responsesx").starts_with("/v1/responsesx is not found"));
  EXPECT_TRUE(missing_path("/\n").starts_with("/? is not found"));
  EXPECT_TRUE(missing_path("/a").ends_with(
      "; there are /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, "
      "/health, /ping, /version, /metrics and /openapi.json."));
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
