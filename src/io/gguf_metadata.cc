#include "io/gguf_metadata.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "io/gguf_cursor.h"
#include "io/json.h"

namespace nanovllm {
namespace {

constexpr uint32_t kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5,
                   kFloat32 = 6, kBool = 7, kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11,
                   kFloat64 = 12;
// By type; 0: of no fixed size.
constexpr std::array<size_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T value_at(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::string_view text_at(const std::byte* data) {
  return {reinterpret_cast<const char*>(data) + sizeof(uint64_t), value_at<uint64_t>(data)};
}

// What lies there, if it is of a type that fits.
std::optional<std::string_view> string_at(uint32_t type, const std::byte* data) {
  if (type != kString) return std::nullopt;
  return text_at(data);
}

std::optional<bool> boolean_at(uint32_t type, const std::byte* data) {
  if (type != kBool) return std::nullopt;
  return value_at<uint8_t>(data) != 0;
}

std::optional<int64_t> integer_at(uint32_t type, const std::byte* data) {
  if (type == kUint8) return value_at<uint8_t>(data);
  if (type == kInt8) return value_at<int8_t>(data);
  if (type == kUint16) return value_at<uint16_t>(data);
  if (type == kInt16) return value_at<int16_t>(data);
  if (type == kUint32) return value_at<uint32_t>(data);
  if (type == kInt32) return value_at<int32_t>(data);
  const bool fits = type == kInt64 || (type == kUint64 && value_at<int64_t>(data) >= 0);
  if (fits) return value_at<int64_t>(data);
  return std::nullopt;
}

std::optional<double> number_at(uint32_t type, const std::byte* data) {
  if (type == kFloat32) return value_at<float>(data);
  if (type == kFloat64) return value_at<double>(data);
  if (type == kUint64) return static_cast<double>(value_at<uint64_t>(data));
  return integer_at(type, data);
}

std::optional<float> float_at(uint32_t type, const std::byte* data) {
  const auto number = number_at(type, data);
  if (!number || !(std::abs(*number) <= FLT_MAX)) return std::nullopt;
  return static_cast<float>(*number);
}

std::string shown_value(uint32_t type, const std::byte* data) {
  if (type == kString) return fmt::format("\"{}\"", printable(text_at(data)));
  if (const auto boolean = boolean_at(type, data)) return *boolean ? "true" : "false";
  if (type == kUint64) return std::to_string(value_at<uint64_t>(data));
  if (const auto integer = integer_at(type, data)) return std::to_string(*integer);
  return fmt::format("{}", number_at(type, data).value_or(0));
}

}  // namespace

GgufMetadata::GgufMetadata(GgufCursor& cursor, uint64_t num_keys) : path_(cursor.path()) {
  for (uint64_t i = 0; i < num_keys; ++i) {
    cursor.enter("the list of keys");
    Value value;
    value.key = cursor.read_string();
    cursor.enter("key", value.key);
    value.type = cursor.read<uint32_t>();
    value.is_array = value.type == kArray;
    if (value.is_array) {
      value.type = cursor.read<uint32_t>();
      value.count = cursor.read<uint64_t>();
      if (value.type == kArray) cursor.fail_damaged("is an array of arrays, which no model has");
    }
    if (value.type >= kTypeBytes.size()) {
      cursor.fail_damaged(fmt::format("has the unknown type {}", value.type));
    }
    value.data = cursor.here();
    if (value.type == kString) {
      for (uint64_t k = 0; k < value.count; ++k) cursor.read_string();
    } else {
      cursor.take(value.count, kTypeBytes[value.type]);
    }
    values_.push_back(value);
  }
  std::ranges::sort(values_, {}, &Value::key);
  const auto doubled = std::ranges::adjacent_find(values_, {}, &Value::key);
  if (doubled == values_.end()) return;
  cursor.enter("key", doubled->key);
  cursor.fail_damaged("appears twice");
}

const GgufMetadata::Value* GgufMetadata::find(std::string_view key) const {
  const auto at = std::ranges::lower_bound(values_, key, {}, &Value::key);
  return at != values_.end() && at->key == key ? &*at : nullptr;
}

std::vector<std::string_view> GgufMetadata::keys() const {
  std::vector<std::string_view> keys;
  for (const Value& value : values_) keys.push_back(value.key);
  return keys;
}

template <typename T>
std::optional<T> GgufMetadata::scalar(std::string_view key, std::string_view expected,
                                      Decode<T> decode) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto scalar = value->is_array ? std::nullopt : decode(value->type, value->data);
  if (!scalar) fail(key, expected);
  return scalar;
}

template <typename T>
std::optional<std::vector<T>> GgufMetadata::array(std::string_view key, std::string_view expected,
                                                  Decode<T> decode) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array) fail(key, expected);
  std::vector<T> elements;
  elements.reserve(value->count);
  const std::byte* data = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<T> element = decode(value->type, data);
    if (!element) fail(key, expected);
    elements.push_back(*element);
    data +=
        value->type == kString ? sizeof(uint64_t) + text_at(data).size() : kTypeBytes[value->type];
  }
  return elements;
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key, int64_t min, int64_t max) const {
  const auto integer = scalar<int64_t>(key, "an integer", integer_at);
  if (integer && (*integer < min || *integer > max)) {
    fail(key, fmt::format("an integer from {} to {}", min, max));
  }
  return integer;
}

std::optional<double> GgufMetadata::number(std::string_view key, double min, double max) const {
  const auto number = scalar<double>(key, "a number", number_at);
  if (number && !(*number >= min && *number <= max)) {
    fail(key, fmt::format("a number from {} to {}", min, max));
  }
  return number;
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  return scalar<bool>(key, "true or false", boolean_at);
}

std::optional<std::string_view> GgufMetadata::string(std::string_view key) const {
  return scalar<std::string_view>(key, "a string", string_at);
}

std::optional<std::vector<std::string_view>> GgufMetadata::strings(std::string_view key) const {
  return array<std::string_view>(key, "an array of strings", string_at);
}

std::optional<std::vector<int64_t>> GgufMetadata::integers(std::string_view key) const {
  return array<int64_t>(key, "an array of integers", integer_at);
}

std::optional<std::vector<bool>> GgufMetadata::booleans(std::string_view key) const {
  return array<bool>(key, "an array of true and false", boolean_at);
}

std::optional<std::vector<float>> GgufMetadata::floats(std::string_view key) const {
  return array<float>(key, "an array of finite numbers", float_at);
}

void GgufMetadata::fail(std::string_view key, std::string_view expected) const {
  const Value* value = find(key);
  NANOVLLM_CHECK(value != nullptr);
  const char* unfit = value->type == kString ? "strings"
                      : value->type == kBool ? "booleans"
                                             : "numbers";
  throw_error(ErrorCode::kCorruptData, "{}: {} is {}, expected {}", path_, printable(key),
              value->is_array ? fmt::format("an array of {} {}", value->count, unfit)
                              : shown_value(value->type, value->data),
              expected);
}

}  // namespace nanovllm
