#include "io/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxShown = 100;  // bytes of a value or name in a message

// Watches a document while it is parsed.
class Guard {
 public:
  explicit Guard(const std::string& where) : where_(where) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) {
      throw_error(ErrorCode::kCorruptData, "{}: JSON nested deeper than {} levels", where_,
                  kMaxDepth);
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get<std::string>()).second) {
      throw_error(ErrorCode::kCorruptData, "{}: the key \"{}\" appears twice in one object", where_,
                  printable(parsed.get<std::string>()));
    }
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> keys_;  // of every object that is open
};

}  // namespace

std::string printable(std::string_view name) {
  std::string text(name.substr(0, kMaxShown));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (name.size() <= kMaxShown) return text;
  // Never ends inside a UTF-8 sequence.
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xc0) text.pop_back();
  return text + "...";
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  try {
    return nlohmann::json::parse(text.begin(), text.end(), Guard(where));
  } catch (const nlohmann::json::exception& error) {
    std::string_view reason = error.what();
    const size_t tag_end = reason.find("] ");  // "[json.exception.parse_error.101] "
    if (tag_end != std::string_view::npos) reason.remove_prefix(tag_end + 2);
    throw_error(ErrorCode::kCorruptData, "{}: not valid JSON: {}", where, printable(reason));
  }
}

JsonFields::JsonFields(const nlohmann::json& value, std::string where)
    : object_(&value), where_(std::move(where)) {
  if (!value.is_object()) {
    throw_error(ErrorCode::kCorruptData, "{}: expected a JSON object, found {}", where_,
                value.type_name());
  }
}

const nlohmann::json* JsonFields::find(const char* key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::fail(const char* key, const std::string& expected) const {
  const nlohmann::json* value = find(key);
  NANOVLLM_CHECK(value != nullptr);
  const std::string shown =
      value->is_structured()
          ? std::string("an ") + value->type_name()
          : value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  throw_error(ErrorCode::kCorruptData, "{}: \"{}\" is {}, expected {}", where_, key,
              printable(shown), expected);
}

std::optional<int64_t> JsonFields::integer(const char* key, int64_t min, int64_t max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    fail(key, fmt::format("an integer from {} to {}", min, max));
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::number(const char* key, double min, double max) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    fail(key, fmt::format("a number from {} to {}", min, max));
  }
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

}  // namespace nanovllm
