#include "engine/sampling_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <type_traits>

#include "base/testing.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

// As the reference has it: what a value is, the default, and what null is.
std::string kind(int) { return "integer"; }
std::string kind(double) { return "number"; }
std::string kind(bool) { return "true or false"; }
std::string kind(const std::optional<int>&) { return "integer"; }
std::string kind(const std::optional<int64_t>&) { return "integer of 64 bits"; }
std::string kind(const std::optional<std::string>&) { return "text"; }
std::string kind(const std::vector<std::string>&) { return "text or list of texts"; }
std::string kind(const std::vector<int32_t>&) { return "list of token ids"; }
std::string kind(const std::optional<std::vector<int32_t>>&) { return "list of token ids"; }
std::string kind(const std::map<int32_t, float>&) { return "object token id to bias"; }
std::string kind(const std::optional<StructuredOutputsParams>&) { return "object"; }

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return fmt::format("{}", value);
  return "none";
}

std::string null_of(const Parameter& parameter) {
  if (parameter.null == Null::kRefused) return "refused";
  if (parameter.null == Null::kKept) return "the default";
  return std::holds_alternative<int SamplingParams::*>(parameter.member) ? "as many as fit"
                                                                         : "none";
}

std::string row_of(const Parameter& parameter) {
  const SamplingParams defaults;
  const auto row = [&](auto member) {
    const auto& value = defaults.*member;
    const auto& ranges = parameter.ranges;
    return fmt::format("| `{}` | {}{} | {} | {} | {} |\n", parameter.name, kind(value),
                       ranges.empty() ? "" : " in " + interval(ranges.back()), shown(value),
                       null_of(parameter), parameter.help);
  };
  return std::visit(row, parameter.member);
}

TEST(SamplingTable, StandsInTheReference) {
  std::string rows =
      "| Parameter | Value | Default | null | Meaning |\n"
      "|---|---|---|---|---|\n";
  for (const Parameter& parameter : sampling_table()) rows += row_of(parameter);
  std::ostringstream page;
  page << std::ifstream(test::source_path("docs/reference.md")).rdbuf();
  const std::string begin = "<!-- sampling table -->\n";
  const std::string text = page.str();
  const auto from = text.find(begin);
  ASSERT_NE(from, std::string::npos);
  const auto length = text.find("<!-- end -->\n", from) - from;
  EXPECT_EQ(text.substr(from, length), begin + rows) << "docs/reference.md should hold\n" << rows;
}

bool accepts(const Parameter& parameter, double value) {
  SamplingParams params;
  const auto set = [&]<typename T>(T SamplingParams::*member) {
    if constexpr (std::is_same_v<T, double>) {
      params.*member = value;
    } else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::optional<int>>) {
      params.*member = static_cast<int>(value);
    } else {
      FAIL() << parameter.name << " has a range, but no number";
    }
  };
  std::visit(set, parameter.member);
  try {
    params.validate();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(shown(value)), std::string::npos) << error.what();
    return false;
  }
  return true;
}

TEST(SamplingTable, EveryRangeHasTheEndsThatItSays) {
  constexpr double kMost = std::numeric_limits<double>::infinity();
  for (const Parameter& parameter : sampling_table()) {
    if (parameter.ranges.empty()) continue;
    const Range& range = parameter.ranges.back();
    const bool is_double = std::holds_alternative<double SamplingParams::*>(parameter.member);
    const auto below = is_double ? std::nextafter(range.low, -kMost) : range.low - 1;
    const auto above = is_double ? std::nextafter(range.high, kMost) : range.high + 1;
    EXPECT_EQ(accepts(parameter, range.low), !range.low_is_open) << parameter.name;
    EXPECT_FALSE(accepts(parameter, below)) << parameter.name;
    if (range.high == kMost) continue;
    EXPECT_TRUE(accepts(parameter, range.high)) << parameter.name;
    EXPECT_FALSE(accepts(parameter, above)) << parameter.name;
  }
}

}  // namespace
}  // namespace nanovllm
