// Cutting text at the matches of a pattern, in all the ways tokenizer.json knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"
#include "text/scanner.h"

namespace nanovllm::text {

enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

struct Section {
  size_t begin, end;  // bytes
  bool is_match;
};

// Immutable after construction.
class Pattern {
 public:
  static Pattern literal(std::string text, const std::string& origin);
  static Pattern regex(const std::string& source, const std::string& origin);
  static Pattern character(bool (*test)(uint32_t));

  // The text cut into matches and what is between them, in order and without a gap; an empty match
  // is an empty section. Replaces what `sections` held.
  void cut(std::string_view text, std::vector<Section>& sections) const;

  // Bytes of a match at most; none where there is no bound.
  std::optional<size_t> max_match() const;
  // The scanner, where the pattern is one that has one.
  std::optional<KnownPattern> known() const;

 private:
  using Test = bool (*)(uint32_t);
  using Matcher = std::variant<std::string, Regex, KnownPattern, Test>;
  explicit Pattern(Matcher matcher) : matcher_(std::move(matcher)) {}
  Matcher matcher_;
};

// The member `name`: {"String": "..."} or {"Regex": "..."}.
Pattern parse_pattern(const class Fields& fields, const char* name);

// Turns matches into the pieces the behaviour asks for; sections that are not removed, in order.
void apply_behavior(SplitBehavior behavior, std::vector<Section>& sections);

}  // namespace nanovllm::text
