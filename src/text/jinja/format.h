// String formatting: "..." % values, "...".format(values) and the format specifications they share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/function.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

Value format_percent(Interpreter& in, const Value& format, const Value& values);
Value format_braces(Interpreter& in, const Value& format, const Arguments& values);
// format(value, specification)
std::string format_value(Interpreter& in, const Value& value, std::string_view specification);

// The digits of |value| as C's printf conversion `type` (e, f, g or upper case) gives them.
std::string float_digits(Budget& budget, double value, char type, int64_t precision,
                         bool alternate);
// |value| in base 2, 8, 10 or 16.
std::string integer_digits(uint64_t magnitude, int base, bool upper_case);
// repr() with everything beyond ASCII escaped.
std::string to_ascii(Budget& budget, const Value& value);

// Widths and precisions are limited, as they multiply what a few characters of template ask for.
inline constexpr int64_t kMaxFormatWidth = 1'000'000;
int64_t checked_width(int64_t width);

}  // namespace nanovllm::jinja
