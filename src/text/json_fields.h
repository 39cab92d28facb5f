// Reading the small parts of tokenizer.json with errors that name the part.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::text {

// One object of tokenizer.json, e.g. a normalizer, most of whose fields must be there; where() is
// "FILE: normalizer.normalizers[1]".
class Fields : JsonFields {
 public:
  using JsonFields::find, JsonFields::JsonFields, JsonFields::required, JsonFields::where;

  std::string type() const;
  std::string string(std::string_view name) const { return given(name, JsonFields::string(name)); }
  // Absent and null are the same.
  std::optional<std::string> optional_string(std::string_view name) const {
    return JsonFields::string(name);
  }
  bool boolean(std::string_view name) const { return given(name, JsonFields::boolean(name)); }
  bool boolean_or(std::string_view name, bool fallback) const {
    return JsonFields::boolean(name).value_or(fallback);
  }
  uint32_t unsigned_integer(std::string_view name) const {
    return static_cast<uint32_t>(given(name, integer(name, 0, UINT32_MAX)));
  }
  // One character, as a code point.
  uint32_t character(std::string_view name) const;
  const Json& array(std::string_view name) const;
  // The object that a field is, or an element of its list.
  Fields part(std::string_view name) const;
  Fields element(std::string_view name, size_t index) const;

  // For a type that is none of those named, e.g. "NFC and NFKC".
  [[noreturn]] void unsupported_type(const char* supported) const;
  [[noreturn]] void fail(std::string_view what) const {
    throw_error(ErrorCode::kCorruptData, "{} {}", where(), what);
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw_error(ErrorCode::kUnsupported, "{} {}", where(), what);
  }

 private:
  template <typename T>
  T given(std::string_view name, std::optional<T> value) const {
    required(name);
    return *std::move(value);
  }
};

// A document or a part of one. Throws Error(kCorruptData) with `name` and `origin`.
Json parse_part(std::string_view json, std::string_view name, const std::string& origin);

// Calls parse(fields) for the part `json`, or for each of the parts that it has as a Sequence,
// whose list is named `list`; not for null.
void for_each_part(const Json& json, const std::string& origin, const char* name, const char* list,
                   const std::function<void(const Fields&)>& parse);

}  // namespace nanovllm::text
