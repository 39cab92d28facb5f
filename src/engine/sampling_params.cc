#include "nanovllm/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/bad_words.h"
#include "engine/logprobs_limit.h"

namespace nanovllm {

namespace {

constexpr int kMaxNumSequences = 16384;
constexpr int kMaxLogprobs = 20;

// As Python writes it, because users compare these sentences with vLLM's: 3.0, not 3.
std::string number(double x) {
  std::string text = fmt::format("{}", x);
  if (std::isfinite(x) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void check_logprobs(const std::optional<int>& logprobs, const char* name, const char* what) {
  if (!logprobs) return;
  if (*logprobs < -1) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be non-negative or -1, got {}.", name,
                *logprobs);
  }
  check_max_logprobs(*logprobs, what);
}

void check_penalty(double penalty, const char* name) {
  if (!(penalty >= -2.0 && penalty <= 2.0)) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be in [-2, 2], got {}.", name,
                number(penalty));
  }
}

// Penalties reach the device as float32, where smaller numbers are 0 and larger ones infinite.
void check_float32(double value, const char* name) {
  using Limits = std::numeric_limits<float>;
  if (value >= Limits::min() && value <= Limits::max()) return;
  throw_error(ErrorCode::kInvalidArgument, "{} must be between {} and {}, got {}.", name,
              Limits::min(), Limits::max(), number(value));
}

void check_distribution(const SamplingParams& p) {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  if (!std::isfinite(p.temperature)) {
    throw_error(kInvalid, "temperature must be a finite number, got {}.", number(p.temperature));
  }
  if (p.temperature < 0.0) {
    throw_error(kInvalid, "temperature must be non-negative, got {}.", number(p.temperature));
  }
  if (p.temperature > 2.0) {
    throw_error(kInvalid, "temperature must be in [0, 2], got {}.", number(p.temperature));
  }
  if (!(p.top_p > 0.0 && p.top_p <= 1.0)) {
    throw_error(kInvalid, "top_p must be in (0, 1], got {}.", number(p.top_p));
  }
  if (p.top_k < -1) {
    throw_error(kInvalid, "top_k must be 0 (disable), or at least 1, got {}.", p.top_k);
  }
  if (!(p.min_p >= 0.0 && p.min_p <= 1.0)) {
    throw_error(kInvalid, "min_p must be in [0, 1], got {}.", number(p.min_p));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (std::isnan(bias)) throw_error(kInvalid, "logit_bias of token {} must be a number.", id);
  }
}

void check_lengths(const SamplingParams& p) {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  if (p.max_tokens < 1) {
    throw_error(kInvalid, "max_tokens must be at least 1, got {}.", p.max_tokens);
  }
  if (p.min_tokens < 0) {
    throw_error(kInvalid, "min_tokens must be greater than or equal to 0, got {}.", p.min_tokens);
  }
  if (p.min_tokens > p.max_tokens) {
    throw_error(kInvalid, "min_tokens must be less than or equal to max_tokens={}, got {}.",
                p.max_tokens, p.min_tokens);
  }
}

}  // namespace

void check_max_logprobs(int num_logprobs, const char* what) {
  if (num_logprobs <= kMaxLogprobs) return;
  throw_error(ErrorCode::kInvalidArgument,
              "Requested {} logprobs of {}, which is greater than max allowed: {}", what,
              num_logprobs, kMaxLogprobs);
}

void SamplingParams::validate() const {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  if (n < 1) throw_error(kInvalid, "n must be at least 1, got {}.", n);
  if (n > kMaxNumSequences) {
    throw_error(kInvalid, "n must be at most {}, got {}.", kMaxNumSequences, n);
  }
  check_penalty(presence_penalty, "presence_penalty");
  check_penalty(frequency_penalty, "frequency_penalty");
  if (!std::isfinite(repetition_penalty)) {
    throw_error(kInvalid, "repetition_penalty must be a finite number, got {}.",
                number(repetition_penalty));
  }
  if (repetition_penalty <= 0.0) {
    throw_error(kInvalid, "repetition_penalty must be greater than zero, got {}.",
                number(repetition_penalty));
  }
  check_float32(repetition_penalty, "repetition_penalty");
  check_distribution(*this);
  check_lengths(*this);
  check_logprobs(logprobs, "logprobs", "sample");
  check_logprobs(prompt_logprobs, "prompt_logprobs", "prompt");
  if (std::ranges::any_of(stop, &std::string::empty)) {
    throw_error(kInvalid, "stop cannot contain an empty string.");
  }
  for (const std::string& word : bad_words) {
    if (word.empty()) throw_error(kInvalid, "bad_words cannot contain an empty string.");
    if (!without_leading_space(word).empty()) continue;
    throw_error(kInvalid,
                "bad_words cannot contain a text of white space only; ban its tokens with "
                "logit_bias.");
  }
  if (temperature == 0 && n > 1) {
    throw_error(kInvalid, "n must be 1 when using greedy sampling, got {}.", n);
  }
}

}  // namespace nanovllm
