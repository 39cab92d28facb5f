// Strings as Python sees them: sequences of code points, held as UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm::jinja {

// The code point at text[pos], pos advanced past it. A byte that is no part of valid UTF-8 counts
// as one code point, kInvalidByte + byte, and is written back as that byte. Lone surrogates decode.
char32_t decode(std::string_view text, size_t& pos);
inline constexpr char32_t kInvalidByte = 0x110000;
void append_utf8(std::string& out, char32_t c);

bool is_ascii(std::string_view text);
size_t count_code_points(std::string_view text);
// Byte offset of the code point `index`, text.size() when there are not so many.
size_t code_point_offset(std::string_view text, size_t index);

// The predicates of Python's str.
bool is_space(char32_t c);
bool is_line_break(char32_t c);  // as str.splitlines() breaks lines
bool is_printable(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
bool is_cased(char32_t c);
inline bool is_alnum(char32_t c) { return is_alpha(c) || is_decimal(c) || is_numeric(c); }
inline bool is_word(char32_t c) { return c == '_' || is_alnum(c); }  // \w
bool is_identifier(std::string_view text);
// str.islower() and str.isupper(): something cased, and nothing of the other case.
bool is_lower_text(std::string_view text);
bool is_upper_text(std::string_view text);
// Whether c can be within a name as the lexer splits names off.
bool is_name_character(char32_t c);

// Full case mappings: one code point can become three.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_swapped_case(std::string_view text);
std::string to_case_folded(std::string_view text);

// repr() of a str.
std::string quote(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
std::string_view strip_spaces(std::string_view text, Side side);
// Strips code points that occur in `characters`.
std::string_view strip_characters(std::string_view text, std::string_view characters, Side side);

// Whether UTF-8 can't hold it: a lone surrogate from an escape such as '\ud800'.
bool has_surrogate(std::string_view text);

}  // namespace nanovllm::jinja
