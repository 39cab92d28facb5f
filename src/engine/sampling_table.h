// The parameters of a request (all but marked_token_ids and output_kind): the one list that
// validation, JSON lines, flags, what a chat shows and the table of docs/reference.md come from. To
// add a parameter, add a member to SamplingParams and a row here.
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
  // vLLM's sentence about a value outside, with {} in place of the value ({0}, and {1} is `high`);
  // null: "NAME must be in [low, high], got VALUE."
  const char* sentence = nullptr;
  bool low_is_open = false;
};
// "[0, 2]", "(0, 1]" if the low end is not in it.
std::string interval(const Range& range);

// What JSON's null means, as None does in vLLM.
enum class Null {
  kRefused,
  kKept,  // the default stays
  kNone,  // none at all: no seed, no texts, no limit for max_tokens
};

enum class Use {
  kOften,     // a chat shows it always
  kSeldom,    // a chat shows it where it is not SamplingParams' own default
  kGenerate,  // a chat does not have it: it shows one answer, without log-probabilities
};

struct Parameter {
  template <typename... T>
  using Members = std::variant<T SamplingParams::*...>;

  std::string_view name;
  Members<int, double, bool, std::optional<int>, std::optional<int64_t>, std::optional<std::string>,
          std::vector<std::string>, std::vector<int32_t>, std::optional<std::vector<int32_t>>,
          std::map<int32_t, float>, std::optional<StructuredOutputsParams>>
      member;
  Null null;
  Use use;
  std::string_view help;
  // A value must be in all of them. The error is about the first that it is not in, so the
  // narrowest comes last.
  std::vector<Range> ranges = {};
};

// In the order in which they are checked and shown.
std::span<const Parameter> sampling_table();

}  // namespace nanovllm
