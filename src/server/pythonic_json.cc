#include "server/pythonic_json.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/tool_types.h"

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
  if (is_word_byte(byte)) {
    word_ += byte;
    return {};
  }
  std::string json = end_word();
  switch (byte) {
    case '"':
    case '\'':
      quote_ = byte;
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

std::string PythonicJson::finish() { return end_word(); }

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
  if (byte == '\\') {
    escape_ = byte;
    return {};
  }
  if (byte != quote_) return json_escaped(byte);
  quote_ = 0;
  return "\"";
}

std::string PythonicJson::end_word() {
  const std::string word = std::exchange(word_, {});
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (word == "None") return "null";
  if (word.empty() || nlohmann::json::accept(word)) return word;
  return '"' + word + '"';
}

}  // namespace nanovllm::server
