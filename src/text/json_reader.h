// A pull parser for JSON documents that are mostly two huge tables: it hands out views into the
// document instead of building a tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/byte_order_mark.h"

namespace nanovllm::text {

// Every function throws Error(kCorruptData), naming the origin, line and column, where the document
// is not what was asked for. The document outlives the reader.
class JsonReader {
 public:
  JsonReader(std::string_view document, const std::string& origin)
      : text_(without_byte_order_mark(document)), origin_(&origin) {}

  char peek();  // the next character that is not white space, '\0' at the end
  // Object and array iteration: `first` is true before the first call and kept by the reader.
  void begin(char bracket);                          // '{' or '['
  bool next_member(bool& first, std::string& name);  // false: '}' is consumed
  bool next_element(bool& first);                    // false: ']' is consumed
  std::string_view string();                         // unescaped; valid until the next call
  uint32_t unsigned_integer();
  double number();                // rounded as serde_json does it, the reader of `tokenizers`
  std::string_view skip_value();  // the value's own text; only its strings and nesting are checked
  void end();                     // nothing but white space is left

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip_space();
  void skip_string();
  std::string_view unescape(size_t start);
  uint32_t hex4();

  std::string_view text_;
  const std::string* origin_;
  size_t at_ = 0;
  std::string scratch_;
};

}  // namespace nanovllm::text
