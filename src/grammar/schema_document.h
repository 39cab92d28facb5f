// A JSON Schema's text: its parts, where they stand, and what they refer to.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nanovllm::grammar {

using Json = nlohmann::ordered_json;

class SchemaDocument {
 public:
  explicit SchemaDocument(std::string_view text);

  const Json& root() const { return root_; }
  // "JSON schema at /properties/a"
  std::string where(const Json& part) const;
  std::string path(const Json& part) const;  // "/properties/a", and "" of the root
  // Throws Error with the path of `schema`, and the keyword behind it unless that is empty.
  [[noreturn]] void fail(const Json& schema, std::string_view keyword, std::string_view what) const;
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword) const;
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword,
                           std::string_view what) const;

  // The schema that a $ref of `schema` names. Throws unless it is in this document.
  const Json& resolve(const Json& schema) const;

  // Keywords of an object; null or none where it has none. Of another type they throw.
  const Json* find(const Json& schema, const char* keyword) const;
  const Json* object(const Json& schema, const char* keyword) const;
  const Json* array(const Json& schema, const char* keyword) const;
  std::optional<uint32_t> count(const Json& schema, const char* keyword) const;
  std::optional<std::string> text(const Json& schema, const char* keyword) const;
  // An object or a boolean.
  const Json& schema(const Json& part) const;

 private:
  void find_parents() const;
  void find_parents(const Json& part, const Json* parent, std::string name) const;
  void add_anchors(const Json& part) const;
  const Json& find_target(const Json& schema) const;
  // What "#" means in the schema: the innermost part around it that has an $id.
  const Json& resource_of(const Json& schema) const;

  Json root_;
  bool has_resources_ = false;  // parts with an $id of their own, perhaps
  // Of each part and its key there; found when somebody asks, and so are all below.
  mutable std::unordered_map<const Json*, std::pair<const Json*, std::string>> parents_;
  mutable std::unordered_map<std::string, const Json*> anchors_;  // the first of each name
  mutable std::unordered_map<const Json*, const Json*> targets_;  // by who refers to them
};

}  // namespace nanovllm::grammar
