// Which types the schemas of a request's tools give to arguments, and values of them as JSON: for
// calls that write all values as plain text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace nanovllm::server {

inline constexpr std::string_view kJsonBlanks = " \t\r\n";

// Types of JSON Schema; several may be allowed at once.
enum ValueType : unsigned {
  kNullValue = 1,
  kIntegerValue = 2,
  kNumberValue = 4,
  kBooleanValue = 8,
  kObjectValue = 16,
  kArrayValue = 32,
  kStringValue = 64,
};

class ToolTypes {
 public:
  // [{"type": "function", "function": {"name", "parameters"}}, ...], as chat templates get them.
  explicit ToolTypes(nlohmann::ordered_json tools) : tools_(std::move(tools)) {}

  // Of an argument: what "type", "enum", "anyOf", "oneOf", "allOf" and a "$ref" within the schema
  // allow. A string where they say nothing, as in vLLM.
  unsigned types_of(std::string_view tool, std::string_view argument) const;

 private:
  nlohmann::ordered_json tools_;
};

// The text of a value as JSON of the first of `types`, in the order above, that it can be read as;
// where it can be read as none, as JSON if it is some, else as a string.
std::string typed_json(std::string_view text, unsigned types);

// What stands for a byte within a JSON string.
std::string json_escaped(char byte);

}  // namespace nanovllm::server
