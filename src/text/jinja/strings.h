// Strings as Python sees them, sequences of code points, held as UTF-8: what methods and filters
// share. A byte that is no UTF-8 counts as a code point.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/budget.h"
#include "text/unicode_case.h"
#include "text/utf8.h"

namespace nanovllm::jinja {

size_t count_code_points(std::string_view text);
// Byte offset of the code point `index`, text.size() when there are not so many.
size_t code_point_offset(std::string_view text, size_t index);

bool is_space(uint32_t c);  // str.isspace()
// Appends the character `c`, spelled `bytes`, as repr() shows it, but for quotes and backslashes.
void append_visible(std::string& out, uint32_t c, std::string_view bytes);
// repr() of a str.
std::string quote(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
std::string_view strip_spaces(std::string_view text, Side side);
// Strips code points that occur in `characters`.
std::string_view strip_characters(Budget& budget, std::string_view text,
                                  std::string_view characters, Side side);
// text.find(wanted) in linear time.
size_t find_text(std::string_view text, std::string_view wanted);

using Pieces = std::vector<std::string_view>;
// At white space where the separator is empty. max_splits < 0: as often as there is one.
Pieces split(Budget& budget, std::string_view text, std::string_view separator, int64_t max_splits);
Pieces split_lines(Budget& budget, std::string_view text);
// max_count < 0: all of them.
std::string replace_all(Budget& budget, std::string_view text, std::string_view from,
                        std::string_view to, int64_t max_count);

// float(text), and int(text) where it is a whole number; false where it is no number that fits.
bool parse_number(std::string_view text, int64_t& whole, double& number);

// str.islower() and str.isupper(): something cased, and nothing of another case.
bool is_all(std::string_view text, text::CaseMapping mapping);

// HTML-escaped, as markupsafe does it.
std::string escape_html(std::string_view text);

}  // namespace nanovllm::jinja
