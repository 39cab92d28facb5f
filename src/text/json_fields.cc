#include "text/json_fields.h"

#include "text/utf8.h"

namespace nanovllm::text {

Json parse_part(std::string_view json, std::string_view name, const std::string& origin) {
  return parse_ordered_json(json, fmt::format("{}: {}", origin, printable(name)));
}

uint32_t Fields::character(const char* name) const {
  const std::string value = string(name);
  if (value.empty() || value.size() != static_cast<size_t>(utf8_length(value[0]))) {
    fail(fmt::format("'{}' is not one character", name));
  }
  return decode_utf8(value.data());
}

}  // namespace nanovllm::text
