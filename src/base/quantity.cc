#include "base/quantity.h"

#include <cctype>
#include <charconv>
#include <cmath>

namespace nanovllm {
namespace {

// What a suffix multiplies a number by; 0 = there is none such.
double unit_of(char suffix) {
  constexpr std::string_view kKnown = "kmgt";
  const auto lower = static_cast<char>(std::tolower(static_cast<unsigned char>(suffix)));
  const size_t power = kKnown.find(lower);
  if (power == std::string_view::npos) return 0;
  return std::pow(lower == suffix ? 1000.0 : 1024.0, static_cast<double>(power) + 1);
}

}  // namespace

std::optional<double> parse_quantity(std::string_view text, bool is_bytes) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto format = is_bytes ? std::chars_format::general : std::chars_format::fixed;
  const auto [rest, error] = std::from_chars(text.data(), end, number, format);
  if (error != std::errc() || !(number >= 0) || std::isinf(number)) return std::nullopt;
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  if (suffix.empty()) return is_bytes ? std::optional(number) : std::nullopt;
  const std::string_view bytes = suffix.substr(1);
  const bool is_known = bytes.empty() || (is_bytes && (bytes == "B" || bytes == "iB"));
  const double unit = unit_of(suffix[0]);
  if (!is_known || unit == 0) return std::nullopt;
  return number * unit;
}

}  // namespace nanovllm
