#include "server/agents/json_part.h"

#include "io/json.h"

namespace nanovllm::server {

JsonPart JsonPart::item(size_t index) const {
  JsonPart part((*json_)[index], fmt::format("{}[{}]", where_, index));
  if (!part.json().is_object()) part.refuse(" must be an object, got {}.", shown(part.json()));
  return part;
}

std::optional<JsonPart> JsonPart::find(const char* name) const {
  const auto found = json_->find(name);
  if (found == json_->end() || found->is_null()) return std::nullopt;
  return JsonPart(*found, fmt::format("{}.{}", where_, name));
}

std::optional<std::string> JsonPart::text(const char* name) const {
  const auto part = find(name);
  if (!part) return std::nullopt;
  if (!part->json().is_string()) part->refuse(" must be a text, got {}.", shown(part->json()));
  return part->json().get<std::string>();
}

std::optional<JsonPart> JsonPart::object(const char* name) const {
  auto part = find(name);
  if (part && !part->json().is_object()) {
    part->refuse(" must be an object, got {}.", shown(part->json()));
  }
  return part;
}

std::string JsonPart::given_text(const char* name) const {
  auto value = text(name);
  if (!value) refuse_absence(name);
  return *std::move(value);
}

std::string JsonPart::given(const char* name) const {
  std::string value = given_text(name);
  if (value.empty()) refuse_absence(name);
  return value;
}

JsonPart JsonPart::given_object(const char* name) const {
  auto part = object(name);
  if (!part) refuse_absence(name);
  return *std::move(part);
}

JsonPart JsonPart::list(const char* name) const {
  static const Json kNone = Json::array();
  JsonPart part = find(name).value_or(JsonPart(kNone, where_));
  if (!part.json().is_array()) part.refuse(" must be a list, got {}.", shown(part.json()));
  return part;
}

}  // namespace nanovllm::server
