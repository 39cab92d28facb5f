// The fields of a call's body, which the schema of its kind says the names and types of.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/sampling_params.h"
#include "server/openai/json_body.h"
#include "server/openai/protocol.h"

namespace nanovllm::server {

inline constexpr size_t kMaxStops = 4;  // as vLLM and OpenAI have it
inline constexpr size_t kMaxBadWords = 4096;

// Answers 400, naming a field.
template <typename... Args>
[[noreturn]] void refuse(std::string_view param, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), std::string(param));
}

// JSON Schemas of the bodies that are taken and answered, by name. An API of another room writes
// its own in its file, as a JSON object of them by name in which "string?" is short for a string or
// null, and declares that text here, `extern const char kItsSchemas[];`; openapi.cc lists it.
const Json& body_schemas();
extern const char kMessagesSchemas[];
extern const char kResponsesSchemas[];

class RequestFields {
 public:
  // Throws ApiError where the body is no JSON object, or not what the schema says; ranges and
  // "anyOf" are left to who reads a field. Null is as good as absent.
  RequestFields(std::string_view body, const char* schema, const ServedModel& model);
  // The same of a body that was made of another API's, within the bounds of that one.
  static RequestFields of(Json body, const char* schema, const ServedModel& model) {
    return {model, schema, std::move(body)};
  }

  const Json* find(std::string_view name) const;  // null pointer: absent or null
  bool boolean(std::string_view name, bool otherwise = false) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<std::string> text(std::string_view name) const;

  void read(std::string_view parameter, SamplingParams& params) const;
  // Every parameter of engine/sampling_table.h but these, and response_format.
  void read_all(SamplingParams& params, std::initializer_list<std::string_view> but) const;
  // The field that says what the output must follow.
  const char* constraint() const;
  // Throws ApiError where the call asks for what would change its answer and is not there.
  void refuse_unsupported() const;
  // Throws ApiError where a field that the API does not have would bind the answer in another one.
  // `ours`: what it has.
  void refuse_other_constraints(std::string_view ours) const;
  // Throws ApiError (404) where the field `model` is none of ours.
  void check_model() const;
  std::vector<std::string> unknown() const;

 private:
  RequestFields(const ServedModel& model, const char* schema, Json body);

  const ServedModel& model_;
  const Json& properties_;  // of the schema
  Json body_;
};

// A body within the server's bounds of depth, of values, and of the lists that `bounds` name.
// Throws ApiError where it is no JSON object.
Json parse_body(std::string_view body, const ServedModel& model, std::span<JsonListBound> bounds);
// Throws ApiError (404) where it is none of ours.
void check_model_name(const std::string& name, const ServedModel& model);
// Throws ApiError where there are more messages than tokens in the context.
void check_num_messages(size_t num_messages, const ServedModel& model,
                        const char* param = "messages");

// Of a JSON number that is one, be it written as 16.0.
std::optional<int64_t> whole_number(const Json& value);
// Token ids from 0 to `most`. Throws ApiError for a list that holds something else.
std::vector<int32_t> token_ids_of(const Json& list, const char* param, int32_t most);

}  // namespace nanovllm::server
