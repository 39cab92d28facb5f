#include "text/jinja/strings.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "text/unicode.h"

namespace nanovllm::jinja {
namespace {

using text::next_character;

// Start of the code point that ends before `end`.
size_t previous(std::string_view text, size_t end) {
  size_t start = text::previous_utf8(text, end);
  size_t next = start;
  next_character(text, next);
  return next == end ? start : end - 1;
}

template <typename Predicate>
std::string_view strip_if(std::string_view text, Side side, const Predicate& strips) {
  while (side != Side::kRight && !text.empty()) {
    size_t next = 0;
    if (!strips(next_character(text, next))) break;
    text.remove_prefix(next);
  }
  while (side != Side::kLeft && !text.empty()) {
    const size_t start = previous(text, text.size());
    size_t next = start;
    if (!strips(next_character(text, next))) break;
    text = text.substr(0, start);
  }
  return text;
}

// The first white space of text: where it begins and ends, npos without any.
std::pair<size_t, size_t> find_space(std::string_view text) {
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    if (is_space(next_character(text, end))) return {begin, end};
  }
  return {std::string_view::npos, 0};
}

bool is_line_break(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t count_code_points(std::string_view text) {
  size_t count = text::ascii_prefix(text);
  for (size_t pos = count; pos < text.size(); ++count) next_character(text, pos);
  return count;
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) next_character(text, pos);
  return pos;
}

bool is_space(uint32_t c) { return (c >= 28 && c <= 31) || text::is_space(c); }

void append_visible(std::string& out, uint32_t c, std::string_view bytes) {
  if (c == '\n' || c == '\r' || c == '\t') {
    out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
  } else if (c >= text::kInvalidByte || text::is_printable(c)) {
    out += bytes;
  } else if (c < 0x100) {
    out += fmt::format("\\x{:02x}", c);
  } else {
    out += c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
  }
}

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char mark = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, mark);
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_character(text, pos);
    if (c == static_cast<uint32_t>(mark) || c == '\\') out += '\\';
    append_visible(out, c, text.substr(begin, pos - begin));
  }
  return out + mark;
}

std::string_view strip_spaces(std::string_view text, Side side) {
  return strip_if(text, side, is_space);
}

std::string_view strip_characters(Budget& budget, std::string_view text,
                                  std::string_view characters, Side side) {
  budget.work(characters.size() * 16);
  budget.expect(characters.size() * sizeof(uint32_t));
  std::vector<uint32_t> set;
  for (size_t pos = 0; pos < characters.size();) set.push_back(next_character(characters, pos));
  std::sort(set.begin(), set.end());
  return strip_if(text, side,
                  [&](uint32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

size_t find_text(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return 0;
  const void* found = memmem(text.data(), text.size(), wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

Pieces split(Budget& budget, std::string_view text, std::string_view separator,
             int64_t max_splits) {
  budget.work(text.size());
  Pieces pieces;
  for (;;) {
    if (separator.empty()) text = strip_spaces(text, Side::kLeft);
    if (separator.empty() && text.empty()) return pieces;
    budget.step();
    const size_t found = find_text(text, separator);
    const auto [begin, end] =
        separator.empty() ? find_space(text) : std::pair(found, found + separator.size());
    const bool is_last = max_splits >= 0 && static_cast<int64_t>(pieces.size()) >= max_splits;
    if (is_last || begin == std::string_view::npos) {
      pieces.push_back(text);
      return pieces;
    }
    pieces.push_back(text.substr(0, begin));
    text.remove_prefix(end);
  }
}

Pieces split_lines(Budget& budget, std::string_view text) {
  budget.work(text.size());
  Pieces lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const uint32_t c = next_character(text, pos);
    if (!is_line_break(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    budget.step();
    lines.push_back(text.substr(begin, end - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace_all(Budget& budget, std::string_view text, std::string_view from,
                        std::string_view to, int64_t max_count) {
  budget.work(text.size());
  std::string out;
  const auto put = [&](std::string_view piece) {
    budget.step();
    budget.work(piece.size());
    budget.expect(out.size() + piece.size());
    out += piece;
  };
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    const size_t found = find_text(text, from);
    if (found == std::string_view::npos) break;
    put(text.substr(0, found));
    put(to);
    text.remove_prefix(found + from.size());
    if (!from.empty()) continue;
    // An empty text is found before every character and at the end.
    if (text.empty()) return out;
    const size_t length = code_point_offset(text, 1);
    put(text.substr(0, length));
    text.remove_prefix(length);
  }
  put(text);
  return out;
}

bool parse_number(std::string_view text, int64_t& whole, double& number) {
  text = strip_spaces(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* end = text.data() + text.size();
  int64_t integer = 0;
  double real = 0;
  const auto as_integer = std::from_chars(text.data(), end, integer);
  const auto as_real = std::from_chars(text.data(), end, real);
  if (as_real.ec != std::errc() || as_real.ptr != end) return false;
  number = real;
  if (as_integer.ec == std::errc() && as_integer.ptr == end) whole = integer;
  return true;
}

bool is_all(std::string_view text, text::CaseMapping mapping) {
  return text::map_case(text, mapping) == text &&
         (text::map_case(text, text::CaseMapping::kLower) != text ||
          text::map_case(text, text::CaseMapping::kUpper) != text);
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>'\"";
    static constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t index = kSpecial.find(c);
    index == std::string_view::npos ? out += c : out += kEscapes[index];
  }
  return out;
}

}  // namespace nanovllm::jinja
