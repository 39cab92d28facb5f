#include "server/transcript/pythonic_json.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/transcript/tool_types.h"

namespace nanovllm::server {
namespace {

// Bytes of numbers and names; those of names in other scripts are above ASCII.
bool is_word_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte == '.' || byte == '+' || byte == '-' ||
         static_cast<unsigned char>(byte) >= 0x80;
}

}  // namespace

std::string PythonicJson::take(char byte) {
  if (quote_ != 0) return take_in_string(byte);
  std::string json;
  if (const char ended = std::exchange(ended_quote_, 0); ended != 0) {
    if (byte == '"' || byte == '\'') {
      // Strings side by side are one; the third of three quotes begins one that ends with three.
      is_triple_ = is_empty_ && byte == ended;
      is_empty_ = !is_triple_;
      quote_ = byte;
      return {};
    }
    json = '"';
  }
  if (is_word_byte(byte)) {
    word_ += byte;
    return json;
  }
  json += end_word();
  switch (byte) {
    case '"':
    case '\'':
      quote_ = byte;
      is_empty_ = true;
      is_triple_ = false;
      return json + '"';
    case '(':
    case '[':
    case '{':
      ++depth_;
      return json + (byte == '(' ? '[' : byte);
    case ')':
    case ']':
    case '}':
      --depth_;
      return json + (byte == ')' ? ']' : byte);
    default:
      return json + byte;
  }
}

std::string PythonicJson::finish() {
  std::string json;
  if (std::exchange(ended_quote_, 0) != 0) json += '"';
  return json += end_word();
}

std::string PythonicJson::take_in_string(char byte) {
  if (!escape_.empty()) {
    escape_ += byte;
    // \xNN is the only escape of more than two bytes that JSON does not have.
    if (escape_[1] == 'x' && escape_.size() < 4) return {};
    const std::string escape = std::exchange(escape_, {});
    if (byte == '\'') return "'";
    if (byte == '\n') return {};
    if (escape[1] == 'x') return "\\u00" + escape.substr(2);
    constexpr std::string_view kOfJson = "\"\\/bfnrtu";
    return kOfJson.find(byte) != kOfJson.npos ? escape : "\\" + escape;
  }
  if (byte == quote_) {
    constexpr int kTriple = 3;
    if (is_triple_ && ++num_quotes_ < kTriple) return {};
    num_quotes_ = 0;
    ended_quote_ = std::exchange(quote_, 0);
    return {};
  }
  is_empty_ = false;
  std::string json;
  for (; num_quotes_ > 0; --num_quotes_) json += json_escaped(quote_);
  if (byte == '\\') {
    escape_ = byte;
    return json;
  }
  return json + json_escaped(byte);
}

std::string PythonicJson::end_word() {
  std::string word = std::exchange(word_, {});
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (word == "None") return "null";
  if (word.empty() || nlohmann::json::accept(word)) return word;
  return '"' + word + '"';
}

}  // namespace nanovllm::server
