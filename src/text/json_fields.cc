#include "text/json_fields.h"

#include "text/utf8.h"

namespace nanovllm::text {

uint32_t Fields::character(const char* name) const {
  const std::string value = string(name);
  if (value.empty() || value.size() != static_cast<size_t>(utf8_length(value[0]))) {
    fail(fmt::format("'{}' is not one character", name));
  }
  return decode_utf8(value.data());
}

}  // namespace nanovllm::text
