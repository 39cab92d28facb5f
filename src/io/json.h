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

// Its keys are in the order of the text.
using Json = nlohmann::ordered_json;

// `where` is what error messages begin with, the file's path as a rule. Throws Error(kCorruptData)
// for bad JSON, nesting deeper than 64, and a key that an object has twice.
// `line` is the file's line, from 1, that the text begins with.
Json parse_json(std::string_view text, const std::string& where, int64_t line = 1);

// All of a document, as JsonRules names its members.
inline constexpr std::string_view kEverywhere[] = {""};

// What a document may have.
struct JsonRules {
  int max_depth = 512;
  bool allows_repeats = true;  // of a key in one object, whose last value counts
  size_t max_values = SIZE_MAX;
  int64_t first_line = 1;  // the file's line that the text begins with
  // Where a number has to be held as it is written: within these members of the document. Elsewhere
  // it is the nearest one of 64 bits.
  std::span<const std::string_view> exact_members = {};
};

// Of a list that is a member of the document: what it has beyond `most` is counted and not kept, so
// that it takes no memory.
struct JsonListBound {
  std::string_view name;  // of the member
  size_t most;            // at least 1
  size_t size = 0;        // of the list, once it was parsed
};

// The same with rules of its own. Whatever comes from outside is parsed by one of the two, in
// linear time, for the library recurses when it copies or prints what is nested.
Json parse_ordered_json(std::string_view text, const std::string& where,
                        const JsonRules& rules = {}, std::span<JsonListBound> bounds = {});

// A name from a file, fit for an error message: UTF-8 without control characters, and not much more
// than so many bytes of it.
std::string printable(std::string_view name, size_t max_bytes = 100);
// A value as an error message shows it: a number, a text or the like as it is written, of an object
// or a list only that it is one.
std::string shown(const Json& value);
// What an exception of the JSON library says, fit for an error message.
std::string reason_of(const std::exception& json_error);

// A member of an object; null pointer: absent or null.
const Json* find_member(const Json& object, std::string_view key);
// The value of an integer that 64 bits hold. 16.0 is none.
std::optional<int64_t> integer_of(const Json& value);

// The fields of one JSON object. Fields that are absent or null read as nothing; of another type
// or out of range, they throw Error(kCorruptData) naming the file, the field and what was expected.
class JsonFields {
 public:
  // Throws unless `value`, which must outlive this, is an object.
  JsonFields(const Json& value, std::string where);

  const std::string& where() const { return where_; }
  bool has(std::string_view key) const;  // be it null
  const Json* find(std::string_view key) const;
  const Json& required(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> number(std::string_view key, double min, double max) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  // Those that nobody has asked for, and that are not null, false, 0 or empty.
  std::vector<std::string> unread() const;

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  const Json* object_;
  mutable std::set<std::string, std::less<>> read_;
  std::string where_;
};

}  // namespace nanovllm
