#include "nanovllm/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/bad_words.h"
#include "engine/parameter_error.h"
#include "engine/sampling_table.h"

namespace nanovllm {

namespace {

// As Python writes it, because users compare these sentences with vLLM's: 3.0, not 3.
std::string number(double x) {
  std::string text = fmt::format("{}", x);
  if (std::isfinite(x) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}
std::string number(int x) { return std::to_string(x); }

template <typename T>
void check(const Parameter& parameter, const T& value) {
  if constexpr (std::is_same_v<T, std::optional<int>>) {
    if (value) check(parameter, *value);
  } else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>) {
    for (const Range& range : parameter.ranges) {
      const bool is_above = range.low_is_open ? value > range.low : value >= range.low;
      if (is_above && value <= range.high) continue;
      if (range.sentence != nullptr) {
        refuse_parameter(parameter.name, fmt::runtime(range.sentence), number(value), range.high);
      }
      refuse_parameter(parameter.name, "{} must be in {}, got {}.", parameter.name, interval(range),
                       number(value));
    }
  }
}

}  // namespace

void SamplingParams::validate() const {
  constexpr size_t kMaxCacheSalt = 1024;  // bytes
  for (const Parameter& parameter : sampling_table()) {
    if (parameter.ranges.empty()) continue;
    std::visit([&](auto member) { check(parameter, this->*member); }, parameter.member);
  }
  for (const auto& [id, bias] : logit_bias) {
    if (std::isnan(bias)) {
      refuse_parameter("logit_bias", "logit_bias of token {} must be a number.", id);
    }
  }
  if (min_tokens > max_tokens) {
    refuse_parameter("min_tokens",
                     "min_tokens must be less than or equal to max_tokens={}, got {}.", max_tokens,
                     min_tokens);
  }
  if (std::ranges::any_of(stop, &std::string::empty)) {
    refuse_parameter("stop", "stop cannot contain an empty string.");
  }
  if (allowed_token_ids && allowed_token_ids->empty()) {
    refuse_parameter("allowed_token_ids", "allowed_token_ids is not None and empty!");
  }
  for (const std::string& word : bad_words) {
    if (word.empty()) refuse_parameter("bad_words", "bad_words cannot contain an empty string.");
    if (!without_leading_space(word).empty()) continue;
    refuse_parameter("bad_words",
                     "bad_words cannot contain a text of white space only; ban its tokens with "
                     "logit_bias.");
  }
  if (structured_outputs) structured_outputs->validate();
  if (cache_salt && cache_salt->empty()) {
    refuse_parameter("cache_salt",
                     "Parameter 'cache_salt' must be a non-empty string if provided.");
  }
  if (cache_salt && cache_salt->size() > kMaxCacheSalt) {
    refuse_parameter("cache_salt", "Parameter 'cache_salt' may have {} bytes, got {}.",
                     kMaxCacheSalt, cache_salt->size());
  }
  if (temperature == 0 && n > 1) {
    refuse_parameter("n", "n must be 1 when using greedy sampling, got {}.", n);
  }
}

}  // namespace nanovllm
