#include "engine/sampling_table.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/sampling.h"

namespace nanovllm {

std::string interval(const Range& range) {
  return fmt::format("{}{:.8g}, {:.8g}{}", range.low_is_open ? '(' : '[', range.low, range.high,
                     std::isinf(range.high) ? ')' : ']');
}

std::span<const Parameter> sampling_table() {
  using P = SamplingParams;
  using enum Null;
  using enum Use;
  constexpr double kMost = std::numeric_limits<double>::infinity();
  constexpr double kFinite = std::numeric_limits<double>::max();
  using Float = std::numeric_limits<float>;  // what reaches the device: 1e-300 would be 0 there
  // clang-format off
  static const std::vector<Parameter> table = {
      {"temperature", &P::temperature, kKept, kOften,
       "0 = greedy; higher is more random; below 0.01 is taken as 0.01",
       {{-kFinite, kFinite, "temperature must be a finite number, got {}."},
        {0, kMost, "temperature must be non-negative, got {}."}, {0, 2}}},
      {"top_k", &P::top_k, kKept, kOften, "draw from the k most likely tokens only; 0 or -1 = all",
       {{-1, kMost, "top_k must be 0 (disable), or at least 1, got {}."}}},
      {"top_p", &P::top_p, kKept, kOften,
       "draw from the smallest set of tokens with this probability",
       {{.low = 0, .high = 1, .low_is_open = true}}},
      {"min_p", &P::min_p, kKept, kOften,
       "drop tokens below this share of the likeliest one's probability", {{0, 1}}},
      {"repetition_penalty", &P::repetition_penalty, kKept, kOften,
       "above 1: against tokens already seen, in the prompt too",
       {{-kFinite, kFinite, "repetition_penalty must be a finite number, got {}."},
        {0, kMost, "repetition_penalty must be greater than zero, got {}.", true},
        {Float::min(), Float::max(),
         "repetition_penalty must be between 1.1754944e-38 and 3.4028235e+38, got {}."}}},
      {"max_tokens", &P::max_tokens, kNone, kOften, "longest output, in tokens",
       {{1, kMost, "max_tokens must be at least 1, got {}."}}},
      {"presence_penalty", &P::presence_penalty, kKept, kSeldom,
       "against tokens already generated", {{-2, 2}}},
      {"frequency_penalty", &P::frequency_penalty, kKept, kSeldom,
       "against tokens already generated, for each occurrence", {{-2, 2}}},
      {"logit_bias", &P::logit_bias, kNone, kSeldom,
       "added to the logits of these tokens, clamped to [-100, 100]"},
      {"seed", &P::seed, kNone, kSeldom,
       "same seed, prompt and parameters: same tokens; without one (-1) every run draws alike, by "
       "--engine-seed"},
      {"min_tokens", &P::min_tokens, kRefused, kSeldom, "no end of text before so many tokens",
       {{0, kMost, "min_tokens must be greater than or equal to 0, got {}."}}},
      {"ignore_eos", &P::ignore_eos, kRefused, kSeldom, "go on after the end-of-text token"},
      {"stop", &P::stop, kNone, kSeldom, "text that ends the output"},
      {"stop_token_ids", &P::stop_token_ids, kNone, kSeldom, "token ids that end the output"},
      {"allowed_token_ids", &P::allowed_token_ids, kNone, kSeldom,
       "the only token ids that may be drawn"},
      {"bad_words", &P::bad_words, kNone, kSeldom, "text that the output must not hold"},
      {"thinking_token_budget", &P::thinking_token_budget, kNone, kSeldom,
       "tokens of a thought, after which it is ended; -1 = no bound",
       {{-1, kMost, "thinking_token_budget must be non-negative or -1, got {}."}}},
      {"structured_outputs", &P::structured_outputs, kNone, kSeldom,
       "what the output must follow: one of json, regex, choice, grammar, json_object and "
       "structural_tag"},
      {"include_stop_str_in_output", &P::include_stop_str_in_output, kRefused, kSeldom,
       "keep the text that ended the output"},
      {"skip_special_tokens", &P::skip_special_tokens, kRefused, kSeldom,
       "leave special tokens out of the text"},
      {"n", &P::n, kKept, kGenerate, "completions of each prompt; 1 where temperature is 0",
       {{1, kMost, "n must be at least 1, got {}."},
        {1, 16384, "n must be at most 16384, got {}."}}},
      {"logprobs", &P::logprobs, kNone, kGenerate,
       "log-probabilities of so many top tokens for each position, or (-1) of all, where they are "
       "20 at most",
       {{-1, kMost, "logprobs must be non-negative or -1, got {}."},
        {-1, kMaxLogprobs,
         "Requested sample logprobs of {0}, which is greater than max allowed: {1}"}}},
      {"prompt_logprobs", &P::prompt_logprobs, kNone, kGenerate,
       "the same for each token of the prompt",
       {{-1, kMost, "prompt_logprobs must be non-negative or -1, got {}."},
        {-1, kMaxLogprobs,
         "Requested prompt logprobs of {0}, which is greater than max allowed: {1}"}}},
      {"priority", &P::priority, kRefused, kGenerate,
       "lower is served first, with --scheduling-policy priority; else it must be 0"},
      {"cache_salt", &P::cache_salt, kNone, kGenerate,
       "the prefix cache is shared with requests of the same salt only"},
  };
  // clang-format on
  return table;
}

}  // namespace nanovllm
