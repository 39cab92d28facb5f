// JSON from files that nobody vouches for: bounded depth, no key twice, errors of one sentence.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

// `where` is what error messages begin with, the file's path as a rule. Throws Error(kCorruptData)
// for bad JSON, nesting deeper than 64, and a key that an object has twice.
// `line` is the file's line, from 1, that the text begins with.
nlohmann::json parse_json(std::string_view text, const std::string& where, int64_t line = 1);

// What a document may have.
struct JsonRules {
  int max_depth = 512;
  bool allows_repeats = true;  // of a key in one object, whose last value counts
  size_t max_values = SIZE_MAX;
  int64_t first_line = 1;  // the file's line that the text begins with
};

// Of a list that is a member of the document: what it has beyond `most` is counted and not kept, so
// that it takes no memory.
struct JsonListBound {
  std::string_view name;  // of the member
  size_t most;            // at least 1
  size_t size = 0;        // of the list, once it was parsed
};

// The same with keys in the file's order and rules of its own. Whatever comes from outside is
// parsed by one of the two, in linear time, for the library recurses when it copies or prints what
// is nested.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where,
                                          const JsonRules& rules = {},
                                          std::span<JsonListBound> bounds = {});

// A name from a file, fit for an error message: UTF-8 without control characters, and not much more
// than so many bytes of it.
std::string printable(std::string_view name, size_t max_bytes = 100);
// A value as an error message shows it: a number, a text or the like as it is written, of an object
// or a list only that it is one.
std::string shown(const nlohmann::json& value);
// What an exception of the JSON library says, fit for an error message.
std::string reason_of(const std::exception& json_error);

// The fields of one JSON object. Fields that are absent or null read as nothing; of another type
// or out of range, they throw Error(kCorruptData) naming the file, the field and what was expected.
class JsonFields {
 public:
  // Throws unless `value` is an object. Both must outlive this.
  JsonFields(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  bool has(const char* key) const;  // be it null
  // Null when the field is absent or null.
  const nlohmann::json* find(const char* key) const;
  std::optional<int64_t> integer(const char* key, int64_t min, int64_t max) const;
  std::optional<double> number(const char* key, double min, double max) const;
  std::optional<bool> boolean(const char* key) const;
  std::optional<std::string> string(const char* key) const;
  // Those that nobody has asked for, and that are not null, false, 0 or empty.
  std::vector<std::string> unread() const;

  [[noreturn]] void fail(const char* key, const std::string& expected) const;

 private:
  const nlohmann::json* object_;
  mutable std::set<std::string, std::less<>> read_;
  std::string where_;
};

}  // namespace nanovllm
