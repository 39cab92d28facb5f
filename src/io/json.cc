#include "io/json.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr size_t kMaxReason = 150;  // bytes of a parser's message, which ends with what it met

// Bytes of the UTF-8 character that `text` starts with, 0 when it starts with none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_out_of_range = (lead == 0xe0 && byte(1) < 0xa0) ||
                               (lead == 0xed && byte(1) > 0x9f) ||
                               (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
  return is_out_of_range ? 0 : length;
}

// A parser's message about a text that begins with this line of its file.
std::string with_line(const std::string& reason, int64_t first) {
  constexpr std::string_view kAt = "parse error at line ";
  int64_t line = 0;
  if (!reason.starts_with(kAt)) return reason;
  const char* const end = reason.data() + reason.size();
  const char* const rest = std::from_chars(reason.data() + kAt.size(), end, line).ptr;
  return fmt::format("{}{}{}", kAt, first + line - 1, std::string_view(rest, end));
}

// A number without its sign: its digits without zeros around them, times a power of ten.
struct Digits {
  std::string digits = {};  // empty = zero
  int64_t exponent = 0;
  bool operator==(const Digits&) const = default;
};

Digits digits_of(std::string_view number) {
  Digits result;
  const size_t end = std::min(number.find_first_of("eE"), number.size());
  bool is_behind_point = false;
  for (const char c : number.substr(0, end)) {
    is_behind_point = is_behind_point || c == '.';
    if (c < '0' || c > '9') continue;
    if (c != '0' || !result.digits.empty()) result.digits += c;
    if (is_behind_point) --result.exponent;
  }
  for (; result.digits.ends_with('0'); result.digits.pop_back()) ++result.exponent;
  int64_t exponent = 0;
  const size_t first = std::min(number.find_first_not_of("eE+", end), number.size());
  std::from_chars(number.data() + first, number.data() + number.size(), exponent);
  result.exponent += exponent;
  if (result.digits.empty()) result.exponent = 0;
  return result;
}

// Whether the shortest text that reads as `value` is the same number, or the one that the library
// writes, which is a digit longer at times.
bool is_exactly(double value, std::string_view text) {
  const Digits written = digits_of(text);
  if (value == 0) return written.digits.empty();  // whatever its exponent
  return written == digits_of(fmt::format("{}", value)) || written == digits_of(Json(value).dump());
}

// Builds a document in linear time. The library's own builders do not: one looks through an ordered
// object for every key it adds, the one with a callback through all of a container for every child.
struct Builder {
  struct Open {
    Json* value;
    JsonListBound* bound = nullptr;                       // of a list
    std::unordered_map<std::string, size_t> places = {};  // of an object's members, by key
  };

  const std::string& where;
  const JsonRules& rules;
  std::span<JsonListBound> bounds;
  Json root = {};
  std::vector<Open> open = {};  // containers, outermost first
  std::string name = {};
  size_t place = 0;  // of `name` among its object's members
  size_t num_values = 0;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& text) {
    if (must_be_exact() && !is_exactly(value, text)) {
      fail("the number {} at {} can't be held exactly; use fewer digits", printable(text),
           printable(path(), 300));
    }
    return add(value);
  }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return add(Json::object()); }
  bool start_array(size_t) { return add(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& text) {
    const auto [found, is_new] = open.back().places.try_emplace(text, open.back().value->size());
    if (!is_new && !rules.allows_repeats) {
      fail("the key \"{}\" appears twice in one object", printable(text));
    }
    place = found->second;
    name = std::move(text);
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) const {
    fail("not valid JSON: {}", with_line(reason_of(error), rules.first_line));
  }

  // What is open does not move: only the innermost container grows.
  bool add(Json value) {
    if (++num_values > rules.max_values) fail("more than {} JSON values", rules.max_values);
    const bool is_container = value.is_structured();
    JsonListBound* const bound = value.is_array() && open.size() == 1 ? bound_of_member() : nullptr;
    Json& added = put(std::move(value));
    if (is_container) open.push_back({&added, bound});
    if (std::cmp_greater(open.size(), rules.max_depth)) {
      fail("JSON nested deeper than {} levels", rules.max_depth);
    }
    return true;
  }

  bool close() {
    open.pop_back();
    return true;
  }

  Json& put(Json value) {
    if (open.empty()) return root = std::move(value);
    Json& parent = *open.back().value;
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      JsonListBound* const bound = open.back().bound;
      if (bound != nullptr && ++bound->size > bound->most) return items.back() = std::move(value);
      return items.emplace_back(std::move(value));
    }
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    if (place < members.size()) return members[place].second = std::move(value);
    return members.emplace_back(std::move(name), std::move(value)).second;
  }

  JsonListBound* bound_of_member() const {
    const auto found = std::ranges::find(bounds, name, &JsonListBound::name);
    return open.back().value->is_object() && found != bounds.end() ? &*found : nullptr;
  }

  bool must_be_exact() const {
    if (rules.exact_members.empty()) return false;
    const bool is_everywhere = rules.exact_members.front().empty();
    return is_everywhere ||
           std::ranges::find(rules.exact_members, member_of(0)) != rules.exact_members.end();
  }
  // Of an open container, the key or the place of what is being read.
  std::string member_of(size_t depth) const {
    if (depth >= open.size()) return {};
    const Json& parent = *open[depth].value;
    const bool is_innermost = depth + 1 == open.size();
    if (parent.is_array()) return fmt::format("{}", parent.size() - (is_innermost ? 0 : 1));
    if (is_innermost) return name;
    // As a rule the last one, but for keys that come twice.
    const Json::object_t::Container& members = parent.get_ref<const Json::object_t&>();
    for (size_t i = members.size(); i-- > 0;) {
      if (&members[i].second == open[depth + 1].value) return members[i].first;
    }
    return {};
  }
  std::string path() const {
    std::string path;
    for (size_t depth = 0; depth < open.size(); ++depth) path += "/" + member_of(depth);
    return path.empty() ? "the beginning" : path;
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_error(ErrorCode::kCorruptData, "{}: {}", where,
                fmt::format(format, std::forward<Args>(args)...));
  }
};

}  // namespace

std::string printable(std::string_view name, size_t max_bytes) {
  std::string text;
  while (!name.empty()) {
    if (text.size() >= max_bytes) return text + "...";
    const auto first = static_cast<unsigned char>(name[0]);
    const size_t length = character_length(name);
    const bool is_c1 = length == 2 && first == 0xc2 && static_cast<unsigned char>(name[1]) < 0xa0;
    const bool hidden = length == 0 || first < 0x20 || first == 0x7f || is_c1;
    text += hidden ? "?" : name.substr(0, length);
    name.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

std::string shown(const Json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string reason_of(const std::exception& json_error) {
  std::string_view reason = json_error.what();
  const size_t tag_end = reason.find("] ");  // "[json.exception.parse_error.101] "
  if (tag_end != std::string_view::npos) reason.remove_prefix(tag_end + 2);
  return printable(reason, kMaxReason);
}

Json parse_ordered_json(std::string_view text, const std::string& where, const JsonRules& rules,
                        std::span<JsonListBound> bounds) {
  Builder builder{where, rules, bounds};
  Json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root);
}

Json parse_json(std::string_view text, const std::string& where, int64_t line) {
  constexpr int kMaxDepth = 64;
  return parse_ordered_json(text, where,
                            {.max_depth = kMaxDepth, .allows_repeats = false, .first_line = line});
}

const Json* find_member(const Json& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> integer_of(const Json& value) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

JsonFields::JsonFields(const Json& value, std::string where)
    : object_(&value), where_(std::move(where)) {
  if (!value.is_object()) {
    throw_error(ErrorCode::kCorruptData, "{}: expected a JSON object, found {}", where_,
                value.type_name());
  }
}

bool JsonFields::has(std::string_view key) const {
  read_.emplace(key);
  return object_->contains(key);
}

std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_->items()) {
    const auto* text = value.get_ptr<const std::string*>();
    const bool is_nothing =
        value.empty() || value == false || value == 0 || (text != nullptr && text->empty());
    if (!is_nothing && !read_.contains(key)) keys.push_back(key);
  }
  return keys;
}

const Json* JsonFields::find(std::string_view key) const {
  read_.emplace(key);
  return find_member(*object_, key);
}

const Json& JsonFields::required(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  throw_error(ErrorCode::kCorruptData, "{}: \"{}\" is missing", where_, key);
}

void JsonFields::fail(std::string_view key, std::string_view expected) const {
  const Json* value = find(key);
  NANOVLLM_CHECK(value != nullptr);
  throw_error(ErrorCode::kCorruptData, "{}: \"{}\" is {}, expected {}", where_, key, shown(*value),
              expected);
}

std::optional<int64_t> JsonFields::integer(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = integer_of(*value);
  if (!number || *number < min || *number > max) {
    fail(key, fmt::format("an integer from {} to {}", min, max));
  }
  return number;
}

std::optional<double> JsonFields::number(std::string_view key, double min, double max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    fail(key, fmt::format("a number from {} to {}", min, max));
  }
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

}  // namespace nanovllm
