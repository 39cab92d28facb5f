// A value in a body of JSON, and where it stands.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "server/openai/json_body.h"
#include "server/openai/protocol.h"

namespace nanovllm::server {

// What it refuses, it names by its place: "input[2].content".
class JsonPart {
 public:
  JsonPart(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  const Json& json() const { return *json_; }
  const std::string& where() const { return where_; }
  size_t size() const { return json_->size(); }  // of a list

  // Answers 400 in words that go on from the place.
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> words, Args&&... args) const {
    throw ApiError(400, where_ + fmt::format(words, std::forward<Args>(args)...), where_);
  }

  // Throws ApiError where an item of the list is no object.
  JsonPart item(size_t index) const;
  // Members of an object; none = absent or null. Throw ApiError for those of other types.
  std::optional<JsonPart> find(const char* name) const;
  std::optional<std::string> text(const char* name) const;
  std::optional<JsonPart> object(const char* name) const;
  // The same where they have to be given: a text, which may be empty; one that is not, as names
  // and types; an object; and a list, which may be absent.
  std::string given_text(const char* name) const;
  std::string given(const char* name) const;
  JsonPart given_object(const char* name) const;
  JsonPart list(const char* name) const;

 private:
  [[noreturn]] void refuse_absence(const char* name) const { refuse(".{} must be given.", name); }

  const Json* json_;
  std::string where_;
};

}  // namespace nanovllm::server
