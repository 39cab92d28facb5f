#include "server/agents/custom_input.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "server/openai/json_body.h"
#include "server/transcript/call_scanner.h"
#include "text/utf8.h"

namespace nanovllm::server {
namespace {

constexpr std::string_view kHeadOfInput = R"({"input":")";
constexpr size_t kUnicodeEscape = 6;  // bytes of \u1234

// Of \u1234.
uint32_t code_of_escape(std::string_view escape) {
  uint32_t code = 0;
  std::from_chars(escape.data() + 2, escape.data() + kUnicodeEscape, code, 16);
  return code;
}

bool is_high_surrogate(uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
bool is_low_surrogate(uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

// Of a byte behind a backslash. What is no escape of JSON stays as it is, backslash included:
// models forget to escape those of regular expressions.
std::string short_escape(char byte) {
  constexpr std::string_view kLetters = "bfnrt\"\\/", kMeanings = "\b\f\n\r\t\"\\/";
  const size_t at = kLetters.find(byte);
  return at == kLetters.npos ? std::string("\\") + byte : std::string(1, kMeanings[at]);
}

bool is_hex_digit(char byte) {
  return std::string_view("0123456789abcdefABCDEF").find(byte) != std::string_view::npos;
}

}  // namespace

std::string CustomInput::append(std::string_view arguments) {
  std::string out;
  for (const char byte : arguments) take(byte, out);
  return out;
}

std::string CustomInput::finish() {
  if (mode_ == Mode::kString || mode_ == Mode::kBehind) return {};
  try {
    const Json json = parse_ordered_json(arguments_, "arguments", {.max_depth = kMaxJsonDepth});
    if (json.is_object() && json.contains("input") && json["input"].is_string()) {
      return json["input"].get<std::string>();
    }
  } catch (const Error&) {
    // A text that is no JSON.
  }
  return std::move(arguments_);
}

void CustomInput::take(char byte, std::string& out) {
  switch (mode_) {
    case Mode::kHead:
      arguments_ += byte;
      if (!is_json_blank(byte) || std::ranges::count(head_, '"') % 2 == 1) head_ += byte;
      if (head_ == kHeadOfInput) {
        mode_ = Mode::kString;
      } else if (!kHeadOfInput.starts_with(head_)) {
        mode_ = Mode::kOther;
      }
      return;
    case Mode::kString:
      return escape_.empty() ? take_in_string(byte, out) : take_in_escape(byte, out);
    case Mode::kBehind:
      return;
    case Mode::kOther:
      arguments_ += byte;
      return;
  }
}

void CustomInput::take_in_string(char byte, std::string& out) {
  if (byte == '\\') {
    escape_ = byte;
  } else if (byte == '"') {
    mode_ = Mode::kBehind;
  } else {
    out += byte;
  }
}

void CustomInput::take_in_escape(char byte, std::string& out) {
  const size_t place = escape_.size() % kUnicodeEscape;  // in one of a pair
  const bool fits = place == 0 ? byte == '\\' : place == 1 ? byte == 'u' : is_hex_digit(byte);
  if (!fits && escape_.size() == 1) {
    out += short_escape(byte);
    escape_.clear();
    return;
  }
  if (!fits) {  // half a pair, or no escape at all
    const bool has_half = escape_.size() >= kUnicodeEscape;
    out += has_half ? text::kReplacement : escape_;
    const std::string rest = has_half ? escape_.substr(kUnicodeEscape) : "";
    escape_.clear();
    for (const char again : rest + byte) take(again, out);
    return;
  }
  escape_ += byte;
  if (escape_.size() % kUnicodeEscape == 0) end_escape(out);
}

// Of a unicode escape that is complete, or of the second one behind half a pair.
void CustomInput::end_escape(std::string& out) {
  const uint32_t code = code_of_escape(escape_);
  if (escape_.size() == kUnicodeEscape) {
    if (is_high_surrogate(code)) return;
    if (is_low_surrogate(code)) {
      out += text::kReplacement;
    } else {
      text::append_utf8(out, code);
    }
    escape_.clear();
    return;
  }
  const std::string second = escape_.substr(kUnicodeEscape);
  const uint32_t low = code_of_escape(second);
  if (is_low_surrogate(low)) {
    text::append_utf8(out, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
    escape_.clear();
    return;
  }
  out += text::kReplacement;
  escape_ = second;
  end_escape(out);
}

}  // namespace nanovllm::server
