#include "api/structured_outputs_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm {
namespace {

using Params = StructuredOutputsParams;

struct Field {
  std::string_view name;
  std::variant<bool Params::*, std::optional<std::string> Params::*,
               std::optional<std::vector<std::string>> Params::*>
      member;
  bool is_document = false;  // JSON, or its text
};

constexpr Field kFields[] = {
    {"json", &Params::json, true},
    {"regex", &Params::regex},
    {"choice", &Params::choice},
    {"grammar", &Params::grammar},
    {"json_object", &Params::json_object},
    {"structural_tag", &Params::structural_tag, true},
    {"disable_any_whitespace", &Params::disable_any_whitespace},
    {"disable_additional_properties", &Params::disable_additional_properties},
    {"whitespace_pattern", &Params::whitespace_pattern}};

[[noreturn]] void refuse_value(std::string_view name, std::string_view wanted, const Json& value) {
  throw_error(ErrorCode::kInvalidArgument, "{} must be {}, got {}", name, wanted, shown(value));
}

// For another language's texts may hold what is no UTF-8.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void read(const Json& value, const std::string& where, const Field&, bool& out) {
  if (!value.is_boolean()) refuse_value(where, "true or false", value);
  out = value.get<bool>();
}

void read(const Json& value, const std::string& where, const Field& field,
          std::optional<std::string>& out) {
  if (value.is_string()) {
    out = value.get<std::string>();
  } else if (field.is_document && value.is_object()) {
    out = dumped(value);
  } else {
    refuse_value(where, field.is_document ? "a JSON object, or the text of one" : "a text", value);
  }
}

void read(const Json& value, const std::string& where, const Field&,
          std::optional<std::vector<std::string>>& out) {
  if (!value.is_array()) refuse_value(where, "a list of texts", value);
  out.emplace();
  for (const Json& item : value) {
    if (!item.is_string()) {
      throw_error(ErrorCode::kInvalidArgument, "{} must hold texts only, got {}", where,
                  shown(item));
    }
    out->push_back(item.get<std::string>());
  }
}

[[noreturn]] void refuse_unknown(std::string_view name) {
  std::string names;
  for (const Field& field : kFields) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", field.name);
  }
  throw_error(ErrorCode::kInvalidArgument, "structured_outputs has no \"{}\"; there are {}",
              printable(name), names);
}

const Json& given(const Json& object, const char* name, const std::string& where) {
  const Json* value = find_member(object, name);
  if (value == nullptr) {
    throw_error(ErrorCode::kInvalidArgument, "{}.{} must be given", where, name);
  }
  return *value;
}

// llama.cpp's clients may write a schema beside the type.
const Json& schema_of(const Json& format) {
  const Json* nested = find_member(format, "json_schema");
  const std::string where = nested == nullptr ? "response_format" : "response_format.json_schema";
  if (nested == nullptr && find_member(format, "schema") == nullptr) {
    return given(format, "json_schema", where);
  }
  if (nested != nullptr && !nested->is_object()) refuse_value(where, "an object", *nested);
  const Json& schema = given(nested == nullptr ? format : *nested, "schema", where);
  if (!schema.is_object()) refuse_value(where + ".schema", "an object", schema);
  return schema;
}

std::optional<Params> read_response_format(const Json& format) {
  if (!format.is_object()) refuse_value("response_format", "an object", format);
  const Json& type = given(format, "type", "response_format");
  if (type == "text") return std::nullopt;
  Params params;
  if (type == "structural_tag") {
    params.structural_tag = dumped(format);
  } else if (type == "json_schema" ||
             (type == "json_object" && find_member(format, "schema") != nullptr)) {
    params.json = dumped(schema_of(format));
  } else if (type == "json_object") {
    params.json_object = true;
  } else {
    refuse_value("response_format.type", "text, json_object, json_schema or structural_tag", type);
  }
  return params;
}

}  // namespace

Params read_structured_outputs(const Json& object) {
  if (!object.is_object()) refuse_value("structured_outputs", "an object", object);
  Params params;
  for (const auto& [key, value] : object.items()) {
    const std::string& name = key;
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const Field& one) { return one.name == name; });
    if (value.is_null()) continue;
    if (field == std::end(kFields)) {
      if (value == false) continue;  // what vLLM's class has for itself
      refuse_unknown(name);
    }
    const std::string where = "structured_outputs." + name;
    std::visit([&, &item = value](auto member) { read(item, where, *field, params.*member); },
               field->member);
  }
  return params;
}

Json to_json(const Params& params) {
  Json object = Json::object();
  for (const Field& field : kFields) {
    const auto add = [&]<typename T>(T Params::*member) {
      if constexpr (std::is_same_v<T, bool>) {
        if (params.*member) object[std::string(field.name)] = true;
      } else if (params.*member) {
        object[std::string(field.name)] = *(params.*member);
      }
    };
    std::visit(add, field.member);
  }
  return object;
}

void apply_response_format(const Json& format, SamplingParams& params) {
  std::optional<Params> asked = read_response_format(format);
  if (!asked) return;
  if (params.structured_outputs) {
    throw_error(ErrorCode::kInvalidArgument,
                "response_format and structured_outputs both say what the output must follow; "
                "leave one of them out");
  }
  params.structured_outputs = std::move(asked);
}

}  // namespace nanovllm
