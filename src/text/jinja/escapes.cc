#include "text/jinja/escapes.h"

#include "text/jinja/error.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Exactly `count` hexadecimal digits from pos on.
char32_t read_hex(std::string_view text, size_t& pos, int count, char letter) {
  char32_t value = 0;
  for (int i = 0; i < count; ++i, ++pos) {
    const int digit = pos < text.size() ? hex_digit(text[pos]) : -1;
    if (digit < 0) fail(Fault::kSyntax, "\\{} needs {} hexadecimal digits", letter, count);
    value = value * 16 + static_cast<char32_t>(digit);
  }
  if (value > 0x10FFFF)
    fail(Fault::kSyntax, "\\U{:08x} is no Unicode character", static_cast<uint32_t>(value));
  return value;
}

char32_t read_octal(std::string_view text, size_t& pos) {
  char32_t value = 0;
  for (int i = 0; i < 3 && pos < text.size() && text[pos] >= '0' && text[pos] <= '7'; ++i, ++pos) {
    value = value * 8 + static_cast<char32_t>(text[pos] - '0');
  }
  return value;
}

// A backslash before a character beyond ASCII leaves that character's own escape behind: Jinja
// turns such characters into escapes before it unescapes.
void append_escaped(std::string& out, char32_t c) {
  if (c < 0x100) {
    out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
  } else if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
}

}  // namespace

std::string unescape(std::string_view literal) {
  std::string out;
  out.reserve(literal.size());
  for (size_t pos = 0; pos < literal.size();) {
    if (literal[pos] != '\\' || pos + 1 >= literal.size()) {
      out += literal[pos++];
      continue;
    }
    ++pos;
    if (static_cast<unsigned char>(literal[pos]) >= 0x80) {
      append_escaped(out, decode(literal, pos));
      continue;
    }
    const char letter = literal[pos++];
    switch (letter) {
      case '\n':
        break;
      case '\\':
      case '\'':
      case '"':
        out += letter;
        break;
      case 'a':
        out += '\a';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'v':
        out += '\v';
        break;
      case 'x':
        append_utf8(out, read_hex(literal, pos, 2, letter));
        break;
      case 'u':
        append_utf8(out, read_hex(literal, pos, 4, letter));
        break;
      case 'U':
        append_utf8(out, read_hex(literal, pos, 8, letter));
        break;
      case 'N':
        fail(Fault::kSyntax, "\\N{{...}} escapes are not supported");
      default:
        if (letter >= '0' && letter <= '7') {
          append_utf8(out, read_octal(literal, --pos));
        } else {
          out += '\\';
          out += letter;
        }
    }
  }
  return out;
}

}  // namespace nanovllm::jinja
