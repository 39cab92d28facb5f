#include "server/transcript/tool_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/transcript/pythonic_json.h"

namespace nanovllm::server {
namespace {

using Schema = nlohmann::ordered_json;

// How the name of a type begins, in JSON Schema or in the languages that tools are written in.
constexpr std::pair<std::string_view, ValueType> kTypeNames[] = {
    {"null", kNullValue},    {"none", kNullValue},    {"int", kIntegerValue},
    {"uint", kIntegerValue}, {"long", kIntegerValue}, {"short", kIntegerValue},
    {"num", kNumberValue},   {"float", kNumberValue}, {"double", kNumberValue},
    {"bool", kBooleanValue}, {"obj", kObjectValue},   {"dict", kObjectValue},
    {"arr", kArrayValue},    {"list", kArrayValue},   {"seq", kArrayValue},
};

constexpr int kMaxSchemas = 256;  // that are looked at for one value: references may go in circles

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

unsigned type_named(std::string_view name) {
  const std::string lower = lower_case(name);
  for (const auto& [begin, type] : kTypeNames) {
    if (lower.starts_with(begin)) return type;
  }
  return kStringValue;
}

unsigned type_of_value(const Schema& value) {
  if (value.is_null()) return kNullValue;
  if (value.is_boolean()) return kBooleanValue;
  if (value.is_number_integer()) return kIntegerValue;
  if (value.is_number()) return kNumberValue;
  if (value.is_array()) return kArrayValue;
  return value.is_object() ? kObjectValue : kStringValue;
}

const Schema* member(const Schema& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// "#/$defs/Place" within `root`; null = there is none.
const Schema* referenced(const Schema& root, std::string_view reference) {
  if (!reference.starts_with("#/")) return nullptr;
  reference.remove_prefix(2);
  const Schema* at = &root;
  while (at != nullptr && !reference.empty()) {
    const size_t slash = std::min(reference.find('/'), reference.size());
    at = member(*at, reference.substr(0, slash));
    reference.remove_prefix(std::min(slash + 1, reference.size()));
  }
  return at;
}

unsigned types_in(const Schema& schema, const Schema& root, int& left) {
  unsigned types = 0;
  if (left == 0) return types;
  --left;
  if (const Schema* type = member(schema, "type")) {
    const Schema names = type->is_array() ? *type : Schema::array({*type});
    for (const Schema& name : names) {
      if (name.is_string()) types |= type_named(name.get_ref<const std::string&>());
    }
  }
  if (const Schema* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const Schema& value : *values) types |= type_of_value(value);
  }
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const Schema* choices = member(schema, name);
    if (choices == nullptr || !choices->is_array()) continue;
    for (const Schema& choice : *choices) types |= types_in(choice, root, left);
  }
  const Schema* reference = member(schema, "$ref");
  if (reference != nullptr && reference->is_string()) {
    const Schema* found = referenced(root, reference->get_ref<const std::string&>());
    if (found != nullptr) types |= types_in(*found, root, left);
  }
  return types;
}

bool is_number_text(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  return !digits.empty() && digits[0] >= '0' && digits[0] <= '9' && Schema::accept(text);
}

// Empty = it can't be read as one.
std::string json_as(ValueType type, std::string_view trimmed) {
  const std::string lower = type == kNullValue || type == kBooleanValue ? lower_case(trimmed) : "";
  switch (type) {
    case kNullValue:
      return lower == "null" || lower == "none" ? "null" : "";
    case kIntegerValue:
      if (trimmed.find_first_of(".eE") != trimmed.npos) return "";
      [[fallthrough]];
    case kNumberValue:
      return is_number_text(trimmed) ? std::string(trimmed) : "";
    case kBooleanValue:
      if (lower == "true" || lower == "1") return "true";
      return lower == "false" || lower == "0" ? "false" : "";
    case kObjectValue:
    case kArrayValue: {
      if (!trimmed.starts_with(type == kObjectValue ? '{' : '[')) return "";
      if (Schema::accept(trimmed)) return std::string(trimmed);
      PythonicJson python;
      std::string json;
      for (const char byte : trimmed) json += python.take(byte);
      json += python.finish();
      return Schema::accept(json) ? json : "";
    }
    case kStringValue:
      break;
  }
  return "";
}

}  // namespace

unsigned ToolTypes::types_of(std::string_view tool, std::string_view argument) const {
  for (const Schema& candidate : tools_) {
    const Schema* function = member(candidate, "function");
    const Schema* name = function != nullptr ? member(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>() != tool) {
      continue;
    }
    const Schema* schema = member(*function, "parameters");
    const Schema* all = schema != nullptr ? member(*schema, "properties") : nullptr;
    const Schema* own = all != nullptr ? member(*all, argument) : nullptr;
    int left = kMaxSchemas;
    const unsigned types = own != nullptr ? types_in(*own, *schema, left) : 0;
    return types != 0 ? types : kStringValue;
  }
  return kStringValue;
}

std::string typed_json(std::string_view text, unsigned types) {
  std::string_view trimmed = text;
  trimmed.remove_prefix(std::min(trimmed.find_first_not_of(kJsonBlanks), trimmed.size()));
  trimmed = trimmed.substr(0, trimmed.find_last_not_of(kJsonBlanks) + 1);
  for (const ValueType type :
       {kNullValue, kIntegerValue, kNumberValue, kBooleanValue, kObjectValue, kArrayValue}) {
    if ((types & type) == 0) continue;
    std::string json = json_as(type, trimmed);
    if (!json.empty()) return json;
  }
  if ((types & kStringValue) == 0 && Schema::accept(trimmed)) return std::string(trimmed);
  std::string json = "\"";
  for (const char byte : text) json += json_escaped(byte);
  return json + '"';
}

std::string json_escaped(char byte) {
  switch (byte) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  const auto code = static_cast<unsigned char>(byte);
  return code < 0x20 ? fmt::format("\\u{:04x}", code) : std::string(1, byte);
}

}  // namespace nanovllm::server
