#include "text/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/error.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

void add_piece(Budget& budget, Pieces& pieces, std::string_view piece) {
  budget.step();
  pieces.push_back(piece);
}

size_t next_space(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (is_space(decode(text, next))) break;
    pos = next;
  }
  return pos;
}

// Start of the code point that ends before `end`.
size_t previous(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  size_t next = start;
  decode(text, next);
  return next == end ? start : end - 1;
}

}  // namespace

Pieces split(Budget& budget, std::string_view text, std::string_view separator,
             int64_t max_splits) {
  if (separator.empty()) fail(Fault::kValue, "empty separator");
  budget.work(text.size());
  Pieces pieces;
  while (max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits) {
    const size_t found = text.find(separator);
    if (found == std::string_view::npos) break;
    add_piece(budget, pieces, text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  add_piece(budget, pieces, text);
  return pieces;
}

Pieces split_right(Budget& budget, std::string_view text, std::string_view separator,
                   int64_t max_splits) {
  if (separator.empty()) fail(Fault::kValue, "empty separator");
  budget.work(text.size());
  Pieces pieces;
  while (max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    add_piece(budget, pieces, text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  add_piece(budget, pieces, text);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Pieces split_spaces(Budget& budget, std::string_view text, int64_t max_splits) {
  budget.work(text.size());
  Pieces pieces;
  for (;;) {
    text = strip_spaces(text, Side::kLeft);
    if (text.empty()) return pieces;
    if (max_splits >= 0 && static_cast<int64_t>(pieces.size()) >= max_splits) {
      add_piece(budget, pieces, text);
      return pieces;
    }
    const size_t end = next_space(text, 0);
    add_piece(budget, pieces, text.substr(0, end));
    text.remove_prefix(end);
  }
}

Pieces split_spaces_right(Budget& budget, std::string_view text, int64_t max_splits) {
  budget.work(text.size());
  Pieces pieces;
  for (;;) {
    text = strip_spaces(text, Side::kRight);
    if (text.empty()) break;
    if (max_splits >= 0 && static_cast<int64_t>(pieces.size()) >= max_splits) {
      add_piece(budget, pieces, text);
      break;
    }
    size_t start = text.size();
    while (start > 0) {
      const size_t before = previous(text, start);
      size_t next = before;
      if (is_space(decode(text, next))) break;
      start = before;
    }
    add_piece(budget, pieces, text.substr(start));
    text = text.substr(0, start);
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

Pieces split_lines(Budget& budget, std::string_view text, bool keeps_ends) {
  budget.work(text.size());
  Pieces lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = decode(text, pos);
    if (!is_line_break(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    add_piece(budget, lines, text.substr(begin, (keeps_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) add_piece(budget, lines, text.substr(begin));
  return lines;
}

std::string replace_all(Budget& budget, std::string_view text, std::string_view from,
                        std::string_view to, int64_t max_count) {
  budget.work(text.size());
  const auto limit =
      max_count < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(max_count);
  std::string out;
  size_t count = 0;
  const auto put = [&](std::string_view piece) {
    budget.step();
    budget.work(piece.size());
    budget.expect(out.size() + piece.size());
    out += piece;
  };
  if (from.empty()) {
    size_t pos = 0;
    while (count < limit) {
      put(to);
      ++count;
      if (pos >= text.size()) return out;
      const size_t begin = pos;
      decode(text, pos);
      put(text.substr(begin, pos - begin));
    }
    put(text.substr(pos));
    return out;
  }
  while (count < limit) {
    const size_t found = text.find(from);
    if (found == std::string_view::npos) break;
    put(text.substr(0, found));
    put(to);
    text.remove_prefix(found + from.size());
    ++count;
  }
  put(text);
  return out;
}

std::string pad(Budget& budget, std::string_view text, int64_t width, char32_t fill, Align align) {
  const auto length = static_cast<int64_t>(count_code_points(text));
  if (width <= length) return std::string(text);
  const auto missing = static_cast<size_t>(width - length);
  std::string unit;
  append_utf8(unit, fill);
  budget.expect(std::min(missing, SIZE_MAX / 8) * unit.size());
  budget.work(missing * unit.size());
  size_t left = 0;
  if (align == Align::kRight) left = missing;
  // As CPython's str.center() rounds.
  if (align == Align::kCenter) left = missing / 2 + (missing & static_cast<size_t>(width) & 1);
  std::string out;
  out.reserve(text.size() + missing * unit.size());
  for (size_t i = 0; i < left; ++i) out += unit;
  out += text;
  for (size_t i = left; i < missing; ++i) out += unit;
  return out;
}

namespace {

// Drops single underscores between digits; false where Python forbids one.
bool drop_underscores(std::string_view text, std::string& out) {
  const auto is_digit_at = [&](size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool parse_int(std::string_view text, int base, int64_t& value) {
  text = strip_spaces(text, Side::kBoth);
  bool is_negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    is_negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char prefix = static_cast<char>(text[1] | 0x20);
    const int named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named != 0 && (base == named || base == 0)) {
      base = named;
      text.remove_prefix(2);
      if (!text.empty() && text[0] == '_') text.remove_prefix(1);
    }
  }
  const bool guesses = base == 0;
  if (guesses) base = 10;
  std::string digits;
  if (text.empty() || !drop_underscores(text, digits)) return false;
  if (guesses && digits.size() > 1 && digits[0] == '0' &&
      digits.find_first_not_of('0') != std::string::npos) {
    return false;
  }
  uint64_t magnitude = 0;
  const auto result =
      std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (result.ec == std::errc::invalid_argument || result.ptr != digits.data() + digits.size()) {
    return false;
  }
  const uint64_t most = uint64_t{1} << 63;
  if (result.ec != std::errc() || magnitude > most || (magnitude == most && !is_negative)) {
    fail(Fault::kOverflow, "integers are limited to 64 bits and {} is larger", text);
  }
  value = is_negative ? static_cast<int64_t>(0 - magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

bool parse_float(std::string_view text, double& value) {
  text = strip_spaces(text, Side::kBoth);
  std::string digits;
  if (text.empty() || !drop_underscores(text, digits)) return false;
  std::string_view number = digits;
  const bool is_negative = number[0] == '-';
  if (number[0] == '-' || number[0] == '+') number.remove_prefix(1);
  const std::string word = to_lower(number);
  if (word == "inf" || word == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (word == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    if (number.empty() ||
        !(std::isdigit(static_cast<unsigned char>(number[0])) != 0 || number[0] == '.')) {
      return false;
    }
    const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
    if (result.ptr != number.data() + number.size()) return false;
    if (result.ec == std::errc::result_out_of_range) {
      const size_t e = word.find('e');
      const bool is_tiny = (e != std::string::npos && e + 1 < word.size() && word[e + 1] == '-') ||
                           (e == std::string::npos && word.starts_with('0'));
      value = is_tiny ? 0 : std::numeric_limits<double>::infinity();
    } else if (result.ec != std::errc()) {
      return false;
    }
  }
  if (is_negative) value = -value;
  return true;
}

}  // namespace nanovllm::jinja
