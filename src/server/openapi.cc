// /openapi.json, whose request parameters are those of engine/sampling_table.h.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "base/version.h"
#include "engine/sampling_table.h"
#include "server/json_body.h"
#include "server/protocol.h"
#include "server/request_fields.h"

namespace nanovllm::server {
namespace {

constexpr double kUnbounded = 1e300;

Json reference(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }

Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }

Json or_null(Json schema) {
  if (schema.contains("type")) {
    schema["type"] = Json::array({schema["type"], "null"});
  } else {
    schema["anyOf"].push_back({{"type", "null"}});
  }
  return schema;
}

template <typename T>
Json type_of_member(T SamplingParams::*) {
  if constexpr (std::is_same_v<T, bool>) return {{"type", "boolean"}};
  if constexpr (std::is_same_v<T, double>) return {{"type", "number"}};
  if constexpr (std::is_same_v<T, std::optional<uint64_t>>)
    return {{"type", "integer"}, {"minimum", -1}, {"maximum", UINT64_MAX}};
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>)
    return {{"type", "integer"}, {"minimum", INT32_MIN}, {"maximum", INT32_MAX}};
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const Json text = {{"type", "string"}, {"minLength", 1}};
    return {{"anyOf", {text, list_of(text)}}};
  }
  if constexpr (std::is_same_v<T, std::vector<int32_t>>)
    return list_of({{"type", "integer"}, {"minimum", 0}});
  if constexpr (std::is_same_v<T, std::map<int32_t, float>>)
    return {{"type", "object"},
            {"propertyNames", {{"pattern", "^(0|[1-9][0-9]{0,8})$"}}},
            {"additionalProperties", {{"type", "number"}}}};
  return Json::object();
}

Json schema_of(const Parameter& parameter) {
  Json schema = std::visit([](auto member) { return type_of_member(member); }, parameter.member);
  for (const Range& range : parameter.ranges) {
    const bool is_whole = schema["type"] == "integer";
    const auto bound = [&](double value) {
      return is_whole ? Json(std::llround(value)) : Json(value);
    };
    if (std::abs(range.low) < kUnbounded) {
      schema.erase("minimum");
      schema[range.low_is_open ? "exclusiveMinimum" : "minimum"] = bound(range.low);
    }
    if (std::abs(range.high) < kUnbounded) schema["maximum"] = bound(range.high);
  }
  if (parameter.name == "stop") schema["anyOf"][1]["maxItems"] = kMaxStops;
  if (parameter.null != Null::kRefused) schema = or_null(std::move(schema));
  schema["description"] = parameter.help;
  return schema;
}

Json sampling_properties() {
  Json properties = Json::object();
  for (const Parameter& parameter : sampling_table())
    properties[std::string(parameter.name)] = schema_of(parameter);
  return properties;
}

Json nullable(const char* type) { return {{"type", {type, "null"}}}; }

// What both APIs have besides the parameters.
Json common_properties() {
  Json properties = sampling_properties();
  properties["model"] = nullable("string");
  properties["stream"] = nullable("boolean");
  properties["stream_options"] = {
      {"type", {"object", "null"}},
      {"properties",
       {{"include_usage", nullable("boolean")}, {"continuous_usage_stats", nullable("boolean")}}}};
  properties["request_id"] = nullable("string");
  properties["return_token_ids"] = nullable("boolean");
  properties["return_tokens_as_token_ids"] = nullable("boolean");
  properties["echo"] = nullable("boolean");
  properties["add_special_tokens"] = nullable("boolean");
  properties["response_format"] = {{"type", {"object", "null"}},
                                   {"properties", {{"type", {{"const", "text"}}}}},
                                   {"required", {"type"}}};
  return properties;
}

Json completion_schema() {
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const Json id = {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}};
  const auto some = [](Json items) {
    Json list = list_of(std::move(items));
    list["minItems"] = 1;
    return list;
  };
  Json properties = common_properties();
  properties["prompt"] = {{"anyOf", {text, some(text), some(id), some(some(id))}}};
  properties["max_tokens"] = {{"type", {"integer", "null"}}, {"minimum", 0}};
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", {"prompt"}}};
}

Json message_schema() {
  const Json part = {
      {"type", "object"},
      {"properties", {{"type", {{"const", "text"}}}, {"text", {{"type", "string"}}}}},
      {"required", {"type", "text"}}};
  return {{"type", "object"},
          {"properties",
           {{"role", {{"type", "string"}}},
            {"content", {{"anyOf", {{{"type", {"string", "null"}}}, list_of(part)}}}}}},
          {"required", {"role"}}};
}

Json chat_properties() {
  Json messages = list_of(message_schema());
  messages["minItems"] = 1;
  const Json function = {{"type", "object"},
                         {"properties",
                          {{"name", {{"type", "string"}}},
                           {"description", nullable("string")},
                           {"parameters", nullable("object")},
                           {"strict", nullable("boolean")}}},
                         {"required", {"name"}}};
  Json tools = list_of({{"type", "object"},
                        {"properties", {{"type", {{"const", "function"}}}, {"function", function}}},
                        {"required", {"function"}}});
  tools["minItems"] = 1;
  return {{"messages", std::move(messages)},
          {"tools", or_null(std::move(tools))},
          {"chat_template_kwargs", nullable("object")},
          {"add_generation_prompt", nullable("boolean")},
          {"continue_final_message", nullable("boolean")},
          {"documents", or_null(list_of({{"type", "object"}}))}};
}

Json chat_schema() {
  Json properties = common_properties();
  const Json more = {
      {"tool_choice", {{"enum", {"none", "auto", nullptr}}}},
      {"logprobs", nullable("boolean")},
      {"top_logprobs", {{"type", {"integer", "null"}}, {"minimum", -1}, {"maximum", 20}}},
      {"max_completion_tokens", {{"type", {"integer", "null"}}, {"minimum", 1}}},
      {"parallel_tool_calls", nullable("boolean")},
      {"include_reasoning", nullable("boolean")},
      {"return_prompt_text", nullable("boolean")},
      {"reasoning_effort",
       {{"enum", {"none", "minimal", "low", "medium", "high", "xhigh", "max", nullptr}}}}};
  properties.update(chat_properties());
  properties.update(more);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", {"messages"}}};
}

Json tokenize_schema() {
  Json properties = chat_properties();
  properties["model"] = nullable("string");
  properties["prompt"] = {{"type", "string"}};
  properties["add_special_tokens"] = nullable("boolean");
  properties["return_token_strs"] = nullable("boolean");
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"anyOf", {{{"required", {"prompt"}}}, {{"required", {"messages"}}}}}};
}

Json detokenize_schema() {
  return {
      {"type", "object"},
      {"properties",
       {{"model", nullable("string")}, {"tokens", list_of({{"type", "integer"}, {"minimum", 0}})}}},
      {"required", {"tokens"}}};
}

// An object that has these members; what they hold is the API's business.
Json object_with(std::initializer_list<const char*> members) {
  return {{"type", "object"},
          {"required", Json(std::vector<std::string>(members.begin(), members.end()))}};
}

Json error_schema() {
  return {{"type", "object"},
          {"required", {"error"}},
          {"properties",
           {{"error",
             {{"type", "object"},
              {"required", {"message", "type", "param", "code"}},
              {"properties",
               {{"message", {{"type", "string"}}},
                {"type", {{"type", "string"}}},
                {"param", nullable("string")},
                {"code", {{"type", "integer"}}}}}}}}}};
}

Json content(const char* type, Json schema) { return {{type, {{"schema", std::move(schema)}}}}; }

Json operation(const char* summary, Json answer, const char* request = nullptr) {
  Json responses = {{"200", {{"description", "OK"}, {"content", std::move(answer)}}}};
  const auto errors = request == nullptr ? std::vector{"401", "403", "404", "500", "503"}
                                         : std::vector{"400", "401", "403", "404", "408",
                                                       "413", "429", "500", "503"};
  for (const char* status : errors) {
    responses[status] = {{"description", "An error, in a sentence"},
                         {"content", content("application/json", reference("ErrorResponse"))}};
  }
  Json result = {{"summary", summary}, {"responses", std::move(responses)}};
  if (request != nullptr) {
    result["requestBody"] = {{"required", true},
                             {"content", content("application/json", reference(request))}};
  }
  return result;
}

Json answers(const char* name, bool streams) {
  Json result = content("application/json", reference(name));
  if (streams) result["text/event-stream"] = {{"schema", Json::object()}};
  return result;
}

}  // namespace

std::string openapi_body() {
  const Json any = content("application/json", Json::object());
  const Json text = content("text/plain", {{"type", "string"}});
  const Json paths = {
      {"/v1/completions",
       {{"post", operation("Complete prompts", answers("Completion", true), "CompletionRequest")}}},
      {"/v1/chat/completions",
       {{"post", operation("Answer a chat", answers("ChatCompletion", true), "ChatRequest")}}},
      {"/v1/models", {{"get", operation("The models", answers("ModelList", false))}}},
      {"/tokenize",
       {{"post", operation("Text to ids", answers("Tokens", false), "TokenizeRequest")}}},
      {"/detokenize",
       {{"post", operation("Ids to text", answers("Text", false), "DetokenizeRequest")}}},
      {"/health", {{"get", operation("Whether requests are taken", text)}}},
      {"/ping", {{"get", operation("Whether the server runs", text)}}},
      {"/version", {{"get", operation("The server's version", any)}}},
      {"/metrics", {{"get", operation("For Prometheus", text)}}},
  };
  const Json schemas = {
      {"CompletionRequest", completion_schema()},
      {"ChatRequest", chat_schema()},
      {"TokenizeRequest", tokenize_schema()},
      {"DetokenizeRequest", detokenize_schema()},
      {"ErrorResponse", error_schema()},
      {"Completion", object_with({"id", "object", "created", "model", "choices", "usage"})},
      {"ChatCompletion", object_with({"id", "object", "created", "model", "choices", "usage"})},
      {"ModelList", object_with({"object", "data"})},
      {"Tokens", object_with({"count", "max_model_len", "tokens", "token_strs"})},
      {"Text", object_with({"prompt"})}};
  const Json document = {
      {"openapi", "3.1.0"},
      {"info", {{"title", "nanovllm"}, {"version", kVersion}}},
      {"paths", paths},
      {"components",
       {{"schemas", schemas},
        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return document.dump();
}

}  // namespace nanovllm::server
