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

using Json = nlohmann::ordered_json;

// One object of tokenizer.json, e.g. a normalizer; `path` is where it is:
// "normalizer.normalizers[1]".
class Fields {
 public:
  Fields(const Json& object, const std::string& origin, const std::string& path)
      : object_(object), origin_(origin), path_(printable(path)) {
    if (!object.is_object()) fail("is not an object");
  }

  const std::string& origin() const { return origin_; }
  const std::string& path() const { return path_; }
  std::string type() const;

  std::string string(const char* name) const {
    const Json& value = required(name);
    if (!value.is_string()) fail(fmt::format("has a '{}' that is not a string", name));
    return value.get<std::string>();
  }
  // Absent and null are the same.
  std::optional<std::string> optional_string(const char* name) const {
    if (!find(name)) return std::nullopt;
    return string(name);
  }
  bool boolean(const char* name) const {
    const Json& value = required(name);
    if (!value.is_boolean()) fail(fmt::format("has a '{}' that is neither true nor false", name));
    return value.get<bool>();
  }
  bool boolean_or(const char* name, bool fallback) const {
    return find(name) ? boolean(name) : fallback;
  }
  uint32_t unsigned_integer(const char* name) const {
    const Json& value = required(name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) {
      fail(fmt::format("has a '{}' that is not a non-negative integer below 2^32", name));
    }
    return value.get<uint32_t>();
  }
  // One character, as a code point.
  uint32_t character(const char* name) const;
  const Json& array(const char* name) const {
    const Json& value = required(name);
    if (!value.is_array()) fail(fmt::format("has a '{}' that is not a list", name));
    return value;
  }
  const Json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  const Json& required(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) fail(fmt::format("has no '{}'", name));
    return *value;
  }
  Fields element(const char* name, size_t index) const {
    return Fields(array(name).at(index), origin_, fmt::format("{}.{}[{}]", path_, name, index));
  }

  // For a type that is none of those named, e.g. "NFC and NFKC".
  [[noreturn]] void unsupported_type(const char* supported) const;
  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::kCorruptData, "{}: {} {}", origin_, path_, what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw_error(ErrorCode::kUnsupported, "{}: {} {}", origin_, path_, what);
  }

 private:
  const Json& object_;
  const std::string& origin_;
  std::string path_;
};

// A document or a part of one. Throws Error(kCorruptData) with `name` and `origin`.
Json parse_part(std::string_view json, std::string_view name, const std::string& origin);

// Calls parse(fields) for the part `json`, or for each of the parts that it has as a Sequence,
// whose list is named `list`; not for null.
void for_each_part(const Json& json, const std::string& origin, const char* name, const char* list,
                   const std::function<void(const Fields&)>& parse);

}  // namespace nanovllm::text
