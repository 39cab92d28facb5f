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

// Members without an initializer would be warned about by GCC wherever {.temperature = 0} stands.
struct SamplingParams {
  int n = 1;                 // completions of the prompt; 1 where temperature is 0
  double temperature = 1.0;  // [0, 2]; 0 = greedy; below 0.01 is taken as 0.01
  double top_p = 1.0;        // (0, 1]: smallest set of tokens whose probabilities reach top_p
  int top_k = 0;             // 0 or -1 = all tokens
  double min_p = 0.0;        // [0, 1]: probability relative to the most likely token
  double presence_penalty =
      0.0;  // [-2, 2]; subtracted once from the logits of tokens already generated
  double frequency_penalty = 0.0;   // [-2, 2]; subtracted once for every time a token was generated
  double repetition_penalty = 1.0;  // > 0, in float32's range; logits of tokens in prompt or
                                    // output: divided if positive, else multiplied
  // Token id -> added to its logit, clamped to [-100, 100].
  std::map<int32_t, float> logit_bias = {};
  std::optional<uint64_t> seed = {};  // same seed, prompt and parameters: same tokens; completion i
                                      // of n draws with seed + i
  int max_tokens = 64;                // >= 1; more than fit in max_model_len are as many as fit
  int min_tokens = 0;                 // the first so many hold no EOS, no stop token and no end of
                                      // a stop text
  bool ignore_eos = false;            // go on after the EOS token
  std::vector<std::string> stop = {};        // texts that end the output (not part of it)
  std::vector<int32_t> stop_token_ids = {};  // tokens that end the output
  // Texts that the output must not hold: the last token of each is banned where the others stand
  // before it. How one is spelled is vLLM's rule: at the beginning of a text, and behind a space
  // where that is as many tokens. A request with words of several tokens runs no step ahead.
  std::vector<std::string> bad_words = {};
  bool include_stop_str_in_output = false;  // keep the text that ended the output
  bool skip_special_tokens = true;          // leave special tokens out of the text
  // So many most likely tokens a position, plus the chosen one: up to 20, or -1 for the whole
  // vocabulary, which is refused where that has more than 20 tokens.
  std::optional<int> logprobs = {};
  // The same for each prompt token. Such a request computes its whole prompt: the prefix cache
  // holds no log-probabilities, so nothing is taken from it.
  std::optional<int> prompt_logprobs = {};
  RequestOutputKind output_kind = RequestOutputKind::kCumulative;

  // Throws Error(kInvalidArgument) with vLLM's sentence for the first parameter that is out of
  // range.
  void validate() const;
};

}  // namespace nanovllm
