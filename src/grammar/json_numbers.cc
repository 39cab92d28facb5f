#include "grammar/json_numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace nanovllm::grammar {
namespace {

constexpr int64_t kMaxStates = 6400;        // remainders by digits, of multiple_node()
constexpr uint32_t kMaxExponentDigits = 2;  // so that a double holds it, and all readers take it

// Digits behind a point: at least one of them, and whether none at all will do.
struct Fraction {
  NodeId some = 0;  // never()
  bool none = false;
};

class NumberBuilder {
 public:
  NumberBuilder(Syntax& syntax, uint32_t max_fraction)
      : syntax_(syntax), max_fraction_(max_fraction) {}

  // Numbers of at least zero between two bounds; none: no bound.
  NodeId between(const std::optional<Bound>& min, const std::optional<Bound>& max) {
    std::vector<NodeId> ways;
    const std::string low = min ? min->value.whole : "0";
    const std::string low_rest = min ? min->value.fraction : "";
    const bool low_strict = min && min->is_exclusive;
    if (max && max->value.whole == low) {
      ways.push_back(with_fraction(
          low, between_fractions(low_rest, low_strict, max->value.fraction, max->is_exclusive, 0)));
      return syntax_.choice(ways);
    }
    ways.push_back(with_fraction(low, at_least(low_rest, low_strict, 0)));
    if (max) {
      ways.push_back(
          with_fraction(max->value.whole, at_most(max->value.fraction, max->is_exclusive, 0)));
    }
    // And whole parts strictly between.
    const std::string next = incremented(low);
    const std::string last = max ? decremented(max->value.whole) : std::string(kMaxDigits, '9');
    if (is_less_or_equal(next, last)) {
      ways.push_back(syntax_.sequence({whole_between(next, last), any_fraction()}));
    }
    return syntax_.choice(ways);
  }

  NodeId digits(uint32_t min, uint32_t max) { return syntax_.repeat(digit('0', '9'), min, max); }
  NodeId digit(char first, char last) {
    return syntax_.characters({{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}},
                              Spelling::kText);
  }
  NodeId any_fraction() {
    if (max_fraction_ == 0) return syntax_.empty();
    return syntax_.optional(syntax_.sequence({syntax_.literal("."), digits(1, max_fraction_)}));
  }

 private:
  static bool is_less_or_equal(const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a <= b;
  }
  static std::string incremented(std::string digits) {
    size_t i = digits.size();
    while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
    if (i == 0) return "1" + digits;
    ++digits[i - 1];
    return digits;
  }
  static std::string decremented(std::string digits) {
    if (digits == "0") return digits;  // above it there is no less
    size_t i = digits.size();
    while (digits[i - 1] == '0') digits[--i] = '9';
    --digits[i - 1];
    if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
    return digits;
  }

  // Whole numbers from low to high, by their lengths.
  NodeId whole_between(const std::string& low, const std::string& high) {
    std::vector<NodeId> ways;
    for (size_t length = low.size(); length <= high.size(); ++length) {
      const std::string from = length == low.size() ? low : fmt::format("1{:0<{}}", "", length - 1);
      const std::string to = length == high.size() ? high : std::string(length, '9');
      ways.push_back(same_length(from, to, 0));
    }
    return syntax_.choice(ways);
  }
  NodeId same_length(const std::string& from, const std::string& to, size_t at) {
    const auto rest = static_cast<uint32_t>(from.size() - at);
    if (rest == 0) return syntax_.empty();
    const bool is_low_free = from.find_first_not_of('0', at) == std::string::npos;
    const bool is_high_free = to.find_first_not_of('9', at) == std::string::npos;
    if (is_low_free && is_high_free) return digits(rest, rest);
    if (from[at] == to[at]) {
      return syntax_.sequence({digit(from[at], from[at]), same_length(from, to, at + 1)});
    }
    std::vector<NodeId> ways = {
        syntax_.sequence(
            {digit(from[at], from[at]), same_length(from, std::string(to.size(), '9'), at + 1)}),
        syntax_.sequence(
            {digit(to[at], to[at]), same_length(std::string(from.size(), '0'), to, at + 1)})};
    if (from[at] + 1 < to[at]) {
      ways.push_back(
          syntax_.sequence({digit(static_cast<char>(from[at] + 1), static_cast<char>(to[at] - 1)),
                            digits(rest - 1, rest - 1)}));
    }
    return syntax_.choice(ways);
  }

  NodeId with_fraction(const std::string& whole, Fraction fraction) {
    std::vector<NodeId> ways;
    if (fraction.none) ways.push_back(syntax_.literal(whole));
    ways.push_back(syntax_.sequence({syntax_.literal(whole + "."), fraction.some}));
    return syntax_.choice(ways);
  }

  // In all of these `at` digits have been written, and the bounds are what is left of theirs.
  NodeId up_to_rest(uint32_t min, size_t at) {
    const auto room = max_fraction_ > at ? static_cast<uint32_t>(max_fraction_ - at) : 0;
    return min > room ? syntax_.never() : digits(min, room);
  }
  // A first digit, and what may follow it.
  NodeId led(char first, char last, NodeId rest) {
    return first > last ? syntax_.never() : syntax_.sequence({digit(first, last), rest});
  }
  NodeId led(char only, Fraction rest) {
    const NodeId behind = rest.none ? syntax_.optional(rest.some) : rest.some;
    return led(only, only, behind);
  }
  NodeId zeros(uint32_t min, size_t at) {
    const auto room = max_fraction_ > at ? static_cast<uint32_t>(max_fraction_ - at) : 0;
    return min > room ? syntax_.never() : syntax_.repeat(digit('0', '0'), min, room);
  }

  Fraction at_least(std::string_view low, bool is_strict, size_t at) {
    if (at >= max_fraction_) return {syntax_.never(), low.empty() && !is_strict};
    if (low.empty() && !is_strict) return {up_to_rest(1, at), true};
    if (low.empty()) {  // zeros, then another digit
      return {syntax_.choice(
                  {led('1', '9', up_to_rest(0, at + 1)), led('0', at_least(low, true, at + 1))}),
              false};
    }
    const char first = low[0];
    return {syntax_.choice({led(static_cast<char>(first + 1), '9', up_to_rest(0, at + 1)),
                            led(first, at_least(low.substr(1), is_strict, at + 1))}),
            false};
  }

  Fraction at_most(std::string_view high, bool is_strict, size_t at) {
    if (high.empty()) return {is_strict ? syntax_.never() : zeros(1, at), !is_strict};
    if (at >= max_fraction_) return {syntax_.never(), true};
    const char first = high[0];
    return {syntax_.choice({led('0', static_cast<char>(first - 1), up_to_rest(0, at + 1)),
                            led(first, at_most(high.substr(1), is_strict, at + 1))}),
            true};
  }

  Fraction between_fractions(std::string_view low, bool low_strict, std::string_view high,
                             bool high_strict, size_t at) {
    const bool none = low.empty() && !low_strict && !(high.empty() && high_strict);
    if (low.empty() && !low_strict) {
      Fraction all = at_most(high, high_strict, at);
      all.none = none;
      return all;
    }
    if (high.empty() || at >= max_fraction_) return {syntax_.never(), none};
    const char from = low.empty() ? '0' : low[0], to = high[0];
    const std::string_view low_rest = low.empty() ? low : low.substr(1);
    if (from > to) return {syntax_.never(), none};
    if (from == to) {
      return {
          led(from, between_fractions(low_rest, low_strict, high.substr(1), high_strict, at + 1)),
          none};
    }
    return {syntax_.choice(
                {led(static_cast<char>(from + 1), static_cast<char>(to - 1), up_to_rest(0, at + 1)),
                 led(from, at_least(low_rest, low_strict, at + 1)),
                 led(to, at_most(high.substr(1), high_strict, at + 1))}),
            none};
  }

  Syntax& syntax_;
  const uint32_t max_fraction_;
};

}  // namespace

Decimal Decimal::of(int64_t value) {
  Decimal decimal;
  std::string digits = fmt::format("{}", value);
  decimal.is_negative = digits[0] == '-';
  decimal.whole = digits.substr(decimal.is_negative ? 1 : 0);
  return decimal;
}

Decimal Decimal::of(double value) {
  // The fewest digits that mean it, as whoever wrote it did: no double is 1e23.
  std::array<char, 32> text;
  const char* const end =
      std::to_chars(text.begin(), text.end(), value, std::chars_format::scientific).ptr;
  const std::string_view number(text.data(), end);
  const size_t mark = number.find('e');
  std::string digits;
  for (const char c : number.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  int exponent = 0;
  std::from_chars(&number[mark + (number[mark + 1] == '+' ? 2 : 1)], end, exponent);
  if (exponent < 0) digits.insert(0, static_cast<size_t>(-exponent), '0');
  const auto point = static_cast<size_t>(std::max(exponent, 0) + 1);
  digits.resize(std::max(digits.size(), point), '0');
  Decimal decimal;
  decimal.is_negative = number[0] == '-';
  decimal.whole = digits.substr(0, point);
  decimal.fraction = digits.substr(point);
  while (decimal.fraction.ends_with('0')) decimal.fraction.pop_back();
  if (decimal.is_zero()) decimal.is_negative = false;
  return decimal;
}

Decimal Decimal::negated() const {
  Decimal other = *this;
  other.is_negative = !is_negative && !is_zero();
  return other;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  int order = a.whole.size() < b.whole.size()   ? -1
              : a.whole.size() > b.whole.size() ? 1
                                                : a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);  // no zeros end them
  return a.is_negative ? -order : order;
}

std::optional<bool> is_multiple(const Decimal& value, const Decimal& divisor) {
  const size_t places = std::max(value.fraction.size(), divisor.fraction.size());
  const auto digits_of = [places](const Decimal& number) {
    return number.whole + number.fraction + std::string(places - number.fraction.size(), '0');
  };
  const std::string by = digits_of(divisor);
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(by.data(), by.data() + by.size(), step);
  constexpr uint64_t kMaxStep = 1'000'000'000'000'000'000;  // ten of them fit
  if (error != std::errc() || step > kMaxStep) return std::nullopt;
  uint64_t rest = 0;
  for (const char digit : digits_of(value)) {
    rest = (rest * 10 + static_cast<uint64_t>(digit - '0')) % step;
  }
  return rest == 0;
}

NodeId number_node(Syntax& syntax, const NumberBounds& given) {
  NumberBounds bounds = given;
  // What no number of so many digits is beyond bounds nothing.
  for (const bool is_min : {false, true}) {
    std::optional<Bound>& bound = is_min ? bounds.min : bounds.max;
    if (bound && bound->value.is_negative == is_min && bound->value.whole.size() > kMaxDigits) {
      bound.reset();
    }
  }
  NumberBuilder build(syntax, bounds.max_fraction);
  const NodeId minus = syntax.literal("-");
  if (!bounds.min && !bounds.max) {
    const NodeId whole =
        syntax.choice({syntax.literal("0"),
                       syntax.sequence({build.digit('1', '9'), build.digits(0, kMaxDigits - 1)})});
    NodeId exponent = syntax.empty();
    if (bounds.max_fraction == kMaxDigits) {
      exponent = syntax.optional(syntax.sequence(
          {syntax.characters({{'E', 'E'}, {'e', 'e'}}, Spelling::kText),
           syntax.optional(syntax.characters({{'+', '+'}, {'-', '-'}}, Spelling::kText)),
           build.digits(1, kMaxExponentDigits)}));
    }
    return syntax.sequence({syntax.optional(minus), whole, build.any_fraction(), exponent});
  }
  std::vector<NodeId> ways;
  // From zero up, and below it as the same with a sign.
  const Decimal zero;
  if (!bounds.max || compare(bounds.max->value, zero) >= 0) {
    const bool starts_above = bounds.min && compare(bounds.min->value, zero) >= 0;
    ways.push_back(build.between(starts_above ? bounds.min : std::nullopt, bounds.max));
  }
  if (!bounds.min || compare(bounds.min->value, zero) < 0) {
    std::optional<Bound> least = Bound{zero, true}, most;
    if (bounds.max && compare(bounds.max->value, zero) < 0) {
      least = Bound{bounds.max->value.negated(), bounds.max->is_exclusive};
    }
    if (bounds.min) most = Bound{bounds.min->value.negated(), bounds.min->is_exclusive};
    ways.push_back(syntax.sequence({minus, build.between(least, most)}));
  }
  return syntax.choice(ways);
}

NodeId multiple_node(Syntax& syntax, int64_t divisor, bool allows_negative, bool allows_zero,
                     bool allows_positive) {
  // By the remainder so far: what may follow when up to so many digits more do.
  std::vector<NodeId> behind(divisor, syntax.never()), before(divisor);
  behind[0] = syntax.empty();
  const int64_t length = std::clamp<int64_t>(kMaxStates / divisor, 8, kMaxDigits);
  for (int64_t digits = 1; digits < length; ++digits) {
    for (int64_t r = 0; r < divisor; ++r) {
      std::vector<NodeId> ways;
      if (r == 0) ways.push_back(syntax.empty());
      for (int d = 0; d < 10; ++d) {
        const char c = static_cast<char>('0' + d);
        ways.push_back(syntax.sequence(
            {syntax.literal(std::string_view(&c, 1)), behind[(10 * r + d) % divisor]}));
      }
      before[r] = syntax.choice(ways);
    }
    behind.swap(before);
  }
  std::vector<NodeId> positive;
  for (int d = 1; d < 10; ++d) {
    const char c = static_cast<char>('0' + d);
    positive.push_back(
        syntax.sequence({syntax.literal(std::string_view(&c, 1)), behind[d % divisor]}));
  }
  const NodeId some = syntax.choice(positive);
  std::vector<NodeId> ways;
  if (allows_zero) ways.push_back(syntax.literal("0"));
  if (allows_positive) ways.push_back(some);
  if (allows_negative) ways.push_back(syntax.sequence({syntax.literal("-"), some}));
  return syntax.choice(ways);
}

}  // namespace nanovllm::grammar
