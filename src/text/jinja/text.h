// String algorithms of Python's str that both methods and filters use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/budget.h"

namespace nanovllm::jinja {

using Pieces = std::vector<std::string_view>;

// max_splits < 0: as many as there are. split_spaces() splits at runs of white space.
Pieces split(Budget& budget, std::string_view text, std::string_view separator, int64_t max_splits);
Pieces split_spaces(Budget& budget, std::string_view text, int64_t max_splits);
Pieces split_right(Budget& budget, std::string_view text, std::string_view separator,
                   int64_t max_splits);
Pieces split_spaces_right(Budget& budget, std::string_view text, int64_t max_splits);
Pieces split_lines(Budget& budget, std::string_view text, bool keeps_ends);
// max_count < 0: all of them.
std::string replace_all(Budget& budget, std::string_view text, std::string_view from,
                        std::string_view to, int64_t max_count);
enum class Align { kLeft, kRight, kCenter };
// Filled up to `width` code points.
std::string pad(Budget& budget, std::string_view text, int64_t width, char32_t fill, Align align);

// int(text, base) and float(text); false when Python would raise ValueError. Throws kOverflow for
// an integer beyond 64 bits.
bool parse_int(std::string_view text, int base, int64_t& value);
bool parse_float(std::string_view text, double& value);

}  // namespace nanovllm::jinja
