// JSON numbers between bounds, as digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "grammar/syntax.h"

namespace nanovllm::grammar {

inline constexpr uint32_t kMaxDigits = 32;  // before and behind the point

// A decimal number as it is written without an exponent: 0012.50 is {false, "12", "5"}.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";    // no zeros in front of others
  std::string fraction = {};  // no zeros behind others

  static Decimal of(double value);
  static Decimal of(int64_t value);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
  Decimal negated() const;
  bool operator==(const Decimal&) const = default;
};
// Negative, zero or positive as a is less than b, equal or more.
int compare(const Decimal& a, const Decimal& b);
// Exactly. None: the divisor has too many digits.
std::optional<bool> is_multiple(const Decimal& value, const Decimal& divisor);

struct Bound {
  Decimal value;
  bool is_exclusive = false;
};

struct NumberBounds {
  std::optional<Bound> min, max;
  // Digits behind the point at most; 0: whole numbers, written without a point.
  uint32_t max_fraction = kMaxDigits;
};

// Without bounds numbers may have exponents of two digits, unless they are whole.
NodeId number_node(Syntax& syntax, const NumberBounds& bounds);

// Whole numbers that `divisor` divides, 1 to kMaxDivisor, above zero, below it or both; of fewer
// digits where it is large.
inline constexpr int64_t kMaxDivisor = 800;
NodeId multiple_node(Syntax& syntax, int64_t divisor, bool allows_negative, bool allows_zero,
                     bool allows_positive);

}  // namespace nanovllm::grammar
