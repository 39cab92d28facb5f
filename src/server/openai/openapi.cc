// The schemas of bodies, and /openapi.json. Their sampling parameters are those of
// engine/sampling_table.h, which checks them itself.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "base/version.h"
#include "engine/sampling_table.h"
#include "server/openai/protocol.h"
#include "server/openai/request_fields.h"

namespace nanovllm::server {
namespace {

// "string?" is short for {"type": ["string", "null"]}.
constexpr const char* kCommonFields = R"({
  "model": "string?", "stream": "boolean?", "request_id": "string?", "echo": "boolean?",
  "stream_options": {"type": ["object", "null"], "properties": {
    "include_usage": "boolean?", "continuous_usage_stats": "boolean?"}},
  "return_token_ids": "boolean?", "return_tokens_as_token_ids": "boolean?",
  "add_special_tokens": "boolean?",
  "response_format": {"type": ["object", "null"], "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
    "json_schema": {"type": ["object", "null"], "required": ["schema"], "properties": {
      "name": "string?", "description": "string?", "strict": "boolean?",
      "schema": {"type": "object"}}},
    "schema": "object?", "format": "object?", "structures": "array?", "triggers": "array?"}}
})";

constexpr const char* kStructuredOutputs = R"({
  "type": "object", "additionalProperties": false, "properties": {
    "json": {"anyOf": ["string?", {"type": "object"}]}, "regex": "string?",
    "choice": {"type": ["array", "null"], "minItems": 1, "items": {"type": "string"}},
    "grammar": "string?", "json_object": "boolean?",
    "structural_tag": {"anyOf": ["string?", {"type": "object"}]},
    "disable_any_whitespace": "boolean?", "disable_additional_properties": "boolean?",
    "whitespace_pattern": "string?"}
})";

constexpr const char* kCompletionFields = R"({
  "prompt": {"anyOf": [
    {"type": "string", "minLength": 1},
    {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    {"type": "array", "minItems": 1,
     "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}},
    {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1,
     "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}}}]},
  "max_tokens": {"type": ["integer", "null"], "minimum": 0}
})";

constexpr const char* kPromptFields = R"({
  "messages": {"type": ["array", "null"], "minItems": 1, "items": {
    "type": "object", "required": ["role"], "properties": {
      "role": {"type": "string"}, "name": "string?", "tool_call_id": "string?",
      "reasoning": "string?", "reasoning_content": "string?", "thinking": "string?",
      "content": {"anyOf": ["string?", {"type": "array", "items": {
        "type": "object", "required": ["type", "text"], "properties": {
          "type": {"const": "text"}, "text": {"type": "string"}}}}]},
      "tool_calls": {"type": ["array", "null"], "items": {
        "type": "object", "required": ["function"], "properties": {
          "type": {"enum": ["function"]}, "function": {"type": "object"}}}}}}},
  "tools": {"type": ["array", "null"], "minItems": 1, "items": {
    "type": "object", "required": ["function"], "properties": {
      "type": {"enum": ["function"]},
      "function": {"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "minLength": 1}, "description": "string?",
        "parameters": "object?", "strict": "boolean?"}}}}},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", null]}, {"type": "object"}]},
  "chat_template": "string?",
  "chat_template_kwargs": {"type": ["object", "null"], "maxProperties": 256},
  "reasoning_effort": {
    "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]},
  "documents": {"type": ["array", "null"], "items": {"type": "object"}},
  "add_special_tokens": "boolean?", "add_generation_prompt": "boolean?",
  "continue_final_message": "boolean?"
})";

constexpr const char* kChatFields = R"({
  "logprobs": "boolean?",
  "top_logprobs": {"type": ["integer", "null"], "minimum": -1, "maximum": 20},
  "max_tokens": {"type": ["integer", "null"], "minimum": 1},
  "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
  "parallel_tool_calls": "boolean?", "include_reasoning": "boolean?",
  "return_prompt_text": "boolean?"
})";

constexpr const char* kTokenizeFields = R"({
  "model": "string?", "prompt": "string?", "add_special_tokens": "boolean?",
  "return_token_strs": "boolean?"
})";

constexpr const char* kDetokenizeFields = R"({
  "model": "string?",
  "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}
})";

// What answers hold is the API's business.
constexpr const char kAnswerSchemas[] = R"({
  "ErrorResponse": {"type": "object", "required": ["error"], "properties": {
    "error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string"}, "type": {"type": "string"}, "param": "string?",
      "code": {"type": ["integer", "string"]}}}}},
  "Completion": {"type": "object",
                 "required": ["id", "object", "created", "model", "choices", "usage"]},
  "ChatCompletion": {"type": "object",
                     "required": ["id", "object", "created", "model", "choices", "usage"]},
  "ModelList": {"type": "object", "required": ["object", "data"]},
  "Model": {"type": "object", "required": ["id", "object", "created", "owned_by"]},
  "Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens", "token_strs"]},
  "Text": {"type": "object", "required": ["prompt"]}
})";

// Texts of schemas by name, those of further APIs among them (request_fields.h).
constexpr const char* kSchemaTexts[] = {kAnswerSchemas, kMessagesSchemas, kResponsesSchemas};

Json expanded(Json schema) {
  if (schema.is_string() && schema.get_ref<const std::string&>().ends_with('?')) {
    auto type = schema.get<std::string>();
    type.pop_back();
    return {{"type", {type, "null"}}};
  }
  if (schema.is_structured()) {
    for (Json& item : schema) item = expanded(std::move(item));
  }
  return schema;
}

Json schema_of_type(const char* type, const Json& more = Json::object()) {
  Json schema = {{"type", type}};
  schema.update(more);
  return schema;
}

template <typename T>
Json type_of_member(T SamplingParams::*) {
  if constexpr (std::is_same_v<T, bool>) return schema_of_type("boolean");
  if constexpr (std::is_same_v<T, double>) return schema_of_type("number");
  if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    return schema_of_type("integer", {{"minimum", INT64_MIN}, {"maximum", INT64_MAX}});
  }
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>) {
    return schema_of_type("integer", {{"minimum", INT32_MIN}, {"maximum", INT32_MAX}});
  }
  if constexpr (std::is_same_v<T, std::optional<std::string>>) {
    return schema_of_type("string", {{"minLength", 1}});
  }
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const Json text = schema_of_type("string", {{"minLength", 1}});
    return {{"anyOf", {text, schema_of_type("array", {{"items", text}})}}};
  }
  if constexpr (std::is_same_v<T, std::optional<std::vector<int32_t>>>) {
    return schema_of_type(
        "array", {{"items", schema_of_type("integer", {{"minimum", 0}})}, {"minItems", 1}});
  }
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return schema_of_type("array", {{"items", schema_of_type("integer", {{"minimum", 0}})}});
  }
  if constexpr (std::is_same_v<T, std::optional<StructuredOutputsParams>>) {
    return expanded(Json::parse(kStructuredOutputs));
  }
  if constexpr (std::is_same_v<T, std::map<int32_t, float>>) {
    return schema_of_type("object", {{"propertyNames", {{"pattern", "^(0|[1-9][0-9]{0,8})$"}}},
                                     {"additionalProperties", schema_of_type("number")}});
  }
}

Json schema_of(const Parameter& parameter) {
  constexpr double kUnbounded = 1e300;
  Json schema = std::visit([](auto member) { return type_of_member(member); }, parameter.member);
  const bool is_whole = schema.value("type", "") == "integer";
  const auto bound = [&](double value) {
    return is_whole ? Json(std::llround(value)) : Json(value);
  };
  for (const Range& range : parameter.ranges) {
    if (std::abs(range.low) < kUnbounded) {
      schema.erase("minimum");
      schema[range.low_is_open ? "exclusiveMinimum" : "minimum"] = bound(range.low);
    }
    if (std::abs(range.high) < kUnbounded) schema["maximum"] = bound(range.high);
  }
  if (parameter.name == "stop") schema["anyOf"][1]["maxItems"] = kMaxStops;
  if (parameter.name == "bad_words") schema["anyOf"][1]["maxItems"] = kMaxBadWords;
  if (parameter.null != Null::kRefused && schema.contains("type")) {
    schema["type"] = {schema["type"], "null"};
  } else if (parameter.null != Null::kRefused) {
    schema["anyOf"].push_back(schema_of_type("null"));
  }
  schema["description"] = parameter.help;
  return schema;
}

Json request_of(std::initializer_list<const char*> fields, Json required) {
  Json properties = Json::object();
  for (const char* some : fields) properties.update(expanded(Json::parse(some)));
  return schema_of_type("object",
                        {{"properties", std::move(properties)}, {"required", std::move(required)}});
}

Json with_sampling(Json request, std::initializer_list<std::string_view> but = {}) {
  Json& fields = request["properties"];
  for (const Parameter& parameter : sampling_table()) {
    if (std::ranges::find(but, parameter.name) != but.end()) continue;
    Json& field = fields[std::string(parameter.name)];
    if (field.is_null()) field = schema_of(parameter);
  }
  return request;
}

constexpr std::pair<const char*, const char*> kMethods[] = {{"GET", "get"}, {"POST", "post"}};

Json content_of(std::string_view name) {
  if (name.find('/') != name.npos) return {{name, {{"schema", Json::object()}}}};
  const std::string reference = fmt::format("#/components/schemas/{}", name);
  return {{"application/json", {{"schema", {{"$ref", reference}}}}}};
}

Json operation(const Operation& of) {
  Json answer = content_of(of.answer);
  if (of.streams) answer.update(content_of("text/event-stream"));
  Json result = {{"summary", of.summary},
                 {"responses", {{"200", {{"description", "OK"}, {"content", std::move(answer)}}}}}};
  for (const char* status :
       {"400", "401", "403", "404", "408", "413", "415", "429", "500", "503"}) {
    result["responses"][status] = {{"description", "An error, in a sentence"},
                                   {"content", content_of(of.error)}};
  }
  if (const size_t at = of.path.find('{'); at != of.path.npos) {
    const std::string_view name = of.path.substr(at + 1, of.path.find('}') - at - 1);
    Json parameter = {
        {"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}};
    result["parameters"] = Json::array({std::move(parameter)});
  }
  if (of.request != nullptr) {
    result["requestBody"] = {{"required", true}, {"content", content_of(of.request)}};
  }
  return result;
}

}  // namespace

const Json& body_schemas() {
  static const Json schemas = [] {
    Json all = {{"CompletionRequest",
                 with_sampling(request_of({kCommonFields, kCompletionFields}, {"prompt"}))},
                {"ChatRequest", with_sampling(request_of(
                                    {kCommonFields, kPromptFields, kChatFields}, {"messages"}))},
                {"TokenizeRequest", request_of({kPromptFields, kTokenizeFields}, Json::array())},
                {"DetokenizeRequest", request_of({kDetokenizeFields}, {"tokens"})}};
    for (const char* text : kSchemaTexts) all.update(expanded(Json::parse(text)));
    Json& responses = all["ResponsesRequest"];
    responses = with_sampling(responses, {"n", "max_tokens", "logprobs", "prompt_logprobs"});
    return all;
  }();
  return schemas;
}

std::string openapi_body(std::span<const Operation> operations) {
  Json paths = Json::object();
  for (const Operation& of : operations) {
    for (const auto& [name, method] : kMethods) {
      if (std::string_view(of.methods).find(name) != std::string_view::npos) {
        paths[std::string(of.path)][method] = operation(of);
      }
    }
  }
  const Json key = {{"type", "http"}, {"scheme", "bearer"}};
  return Json({{"openapi", "3.1.0"},
               {"info", {{"title", "nanovllm"}, {"version", kVersion}}},
               {"paths", std::move(paths)},
               {"components", {{"schemas", body_schemas()}, {"securitySchemes", {{"key", key}}}}}})
      .dump();
}

}  // namespace nanovllm::server
