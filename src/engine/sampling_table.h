// The parameters of a request: the one list that validation, JSON lines, flags, what a chat shows
// and the table of docs/reference.md come from. A new one is a member of SamplingParams, and a row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/sampling_params.h"

namespace nanovllm {

struct Range {
  double low, high;
  // vLLM's sentence about a value outside, with {} for that; null: "NAME must be in [low, high]".
  const char* sentence = nullptr;
  bool low_is_open = false;
};
std::string interval(const Range& range);

// What JSON's null means, as None does in vLLM.
enum class Null {
  kRefused,
  kKept,  // the default stays
  kNone,  // none at all: no seed, no texts; of a number, as many as fit
};

enum class Use {
  kOften,     // a chat shows it always
  kSeldom,    // a chat shows it where it is not SamplingParams' own default
  kGenerate,  // not in a chat, which shows one answer, has no other beside it and no
              // log-probabilities
};

struct Parameter {
  template <typename... T>
  using Members = std::variant<T SamplingParams::*...>;

  std::string_view name;
  Members<int, double, bool, std::optional<int>, std::optional<uint64_t>, std::vector<std::string>,
          std::vector<int32_t>, std::map<int32_t, float>>
      member;
  Null null;
  Use use;
  std::string_view help;
  // All hold; the first that a value is outside of is told, so the narrowest stands last.
  std::vector<Range> ranges = {};
};

// In the order in which they are checked and shown.
std::span<const Parameter> sampling_table();

}  // namespace nanovllm
