// Python's operators and conversions over values.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace nanovllm::jinja {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

bool is_truthy(const Value& value);
bool equal(Budget& budget, const Value& a, const Value& b);
// Throws kType where Python has no order.
bool compare(Budget& budget, CompareOp op, const Value& a, const Value& b);
size_t hash_value(Budget& budget, const Value& value);

Value apply_binary(Interpreter& in, BinaryOp op, Value a, const Value& b);
Value negate(const Value& value);
Value posit(const Value& value);
// `item in container`, iterators being used up as far as needed.
bool contains(Interpreter& in, const Value& container, const Value& item);
// a ** b, a % b as filters need them.
double float_of(const Value& number);  // throws kType when it is no number

// len(); throws kType when there is none.
int64_t length_of(const Value& value);
bool has_length(const Value& value);

std::string to_str(Budget& budget, const Value& value);
std::string to_repr(Budget& budget, const Value& value);
void append_str(Budget& budget, std::string& out, const Value& value);
// repr() of a float: the shortest text that reads back as the same number.
std::string float_repr(double value);
// HTML-escaped, as markupsafe does it.
std::string escape_html(std::string_view text);
Value escape(Budget& budget, const Value& value);  // Markup

}  // namespace nanovllm::jinja
