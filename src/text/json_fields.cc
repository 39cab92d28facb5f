#include "text/json_fields.h"

#include "text/utf8.h"

namespace nanovllm::text {

Json parse_part(std::string_view json, std::string_view name, const std::string& origin) {
  return parse_ordered_json(json, fmt::format("{}: {}", origin, printable(name)));
}

std::string Fields::type() const {
  if (!find("type")) {
    fail(
        "has no 'type': the file may be from an early release of `tokenizers`; load it with "
        "transformers and write it anew with save_pretrained");
  }
  return string("type");
}

void Fields::unsupported_type(const char* supported) const {
  unsupported(fmt::format("is a '{}', which is not supported ({} are)", printable(string("type")),
                          supported));
}

uint32_t Fields::character(std::string_view name) const {
  const std::string value = string(name);
  if (value.empty() || value.size() != static_cast<size_t>(utf8_length(value[0]))) {
    JsonFields::fail(name, "one character");
  }
  return decode_utf8(value.data());
}

const Json& Fields::array(std::string_view name) const {
  const Json& value = required(name);
  if (!value.is_array()) JsonFields::fail(name, "a list");
  return value;
}

Fields Fields::part(std::string_view name) const {
  return {required(name), fmt::format("{}.{}", where(), printable(name))};
}

Fields Fields::element(std::string_view name, size_t index) const {
  return {array(name).at(index), fmt::format("{}.{}[{}]", where(), name, index)};
}

namespace {

constexpr int kMaxNesting = 16;

void parse_sequence(const Fields& fields, const char* list, int depth,
                    const std::function<void(const Fields&)>& parse) {
  if (depth > kMaxNesting) fields.unsupported("is nested too deeply");
  if (fields.type() != "Sequence") return parse(fields);
  for (size_t i = 0; i < fields.array(list).size(); ++i) {
    parse_sequence(fields.element(list, i), list, depth + 1, parse);
  }
}

}  // namespace

void for_each_part(const Json& json, const std::string& origin, const char* name, const char* list,
                   const std::function<void(const Fields&)>& parse) {
  if (!json.is_null()) {
    parse_sequence(Fields(json, fmt::format("{}: {}", origin, name)), list, 0, parse);
  }
}

}  // namespace nanovllm::text
