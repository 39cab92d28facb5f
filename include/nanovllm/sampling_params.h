// How a request's tokens are chosen. Meanings, ranges and error sentences are vLLM's.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nanovllm {

// What the outputs of a request's steps hold.
enum class RequestOutputKind {
  kCumulative,  // everything so far, each time
  kDelta,       // what is new since the request's last output; the prompt comes with the first one
  kFinalOnly,   // everything, once, when the request ends
};

// SamplingParams::max_tokens that ends an output only where model and KV cache do.
inline constexpr int kAsManyAsFit = std::numeric_limits<int>::max();

// The range of each, and what it means in a line: docs/reference.md.
// Members without an initializer would be warned about by GCC wherever {.temperature = 0} stands.
struct SamplingParams {
  int n = 1;
  double temperature = 1.0;
  double top_p = 1.0;
  int top_k = 0;
  double min_p = 0.0;
  // Subtracted once from the logits of tokens already generated.
  double presence_penalty = 0.0;
  // Subtracted once for every time a token was generated.
  double frequency_penalty = 0.0;
  // Logits of tokens in prompt or output are divided by it if positive, else multiplied.
  double repetition_penalty = 1.0;
  // Token id -> added to its logit, clamped to [-100, 100].
  std::map<int32_t, float> logit_bias = {};
  std::optional<uint64_t> seed = {};  // completion i of n draws with seed + i
  // More than fit in max_model_len are as many as fit.
  int max_tokens = 64;
  // The first so many tokens hold no EOS, no stop token and no end of a stop text.
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop = {};  // not part of the output
  std::vector<int32_t> stop_token_ids = {};
  // The last token of each is banned where the others stand before it. How one is spelled is vLLM's
  // rule: at the beginning of a text, and behind a space where that is as many tokens. A request
  // with words of several tokens runs no step ahead.
  std::vector<std::string> bad_words = {};
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<int> logprobs = {};  // the chosen token's comes with them
  // A request with these computes its whole prompt: the prefix cache holds no log-probabilities, so
  // nothing is taken from it.
  std::optional<int> prompt_logprobs = {};
  // Lower is served first, of equals who came first; needs EngineConfig::scheduling_policy
  // priority.
  int priority = 0;
  RequestOutputKind output_kind = RequestOutputKind::kCumulative;

  // Throws Error(kInvalidArgument) with vLLM's sentence for the first parameter that is out of
  // range.
  void validate() const;
  bool operator==(const SamplingParams&) const = default;
};

}  // namespace nanovllm
