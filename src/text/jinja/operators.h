// Python's operators and conversions over values.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace nanovllm::jinja {

class Interpreter;

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

bool is_truthy(const Value& value);
bool equal(Budget& budget, const Value& a, const Value& b);
// Fails where Python has no order.
bool compare(Budget& budget, CompareOp op, const Value& a, const Value& b);
size_t hash_value(Budget& budget, const Value& value);

// `item in container`, an iterator being used up.
bool contains(Interpreter& in, const Value& container, const Value& item);

Value apply_binary(Budget& budget, BinaryOp op, Value a, const Value& b);
Value apply_sign(bool negates, const Value& value);
double float_of(const Value& number);

// The keys and values of a dict, in tuples.
Values pairs_of(Budget& budget, const Value& dict);
// Strings of one character each to one.
Value join_characters(Budget& budget, const Values& characters, bool markup);

// len(); -1 when there is none.
int64_t length_of(const Value& value);

std::string to_str(Budget& budget, const Value& value);
std::string to_repr(Budget& budget, const Value& value);
void append_str(Budget& budget, std::string& out, const Value& value);
Value escape(Budget& budget, const Value& value);  // Markup

}  // namespace nanovllm::jinja
