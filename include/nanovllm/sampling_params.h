// How a request's tokens are chosen. Meanings, ranges and error sentences are vLLM's.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nanovllm {

// What each RequestOutput of a request contains.
enum class RequestOutputKind {
  kCumulative,  // everything so far, each time
  kDelta,       // what is new since the request's last output; the prompt comes with the first one
  kFinalOnly,   // everything, once, when the request ends
};

// Value of SamplingParams::max_tokens: no limit but max_model_len and the size of the KV cache.
inline constexpr int kAsManyAsFit = std::numeric_limits<int>::max();

// Where a request's thoughts begin and end. RequestPreparer fills it in, for a request that has a
// thinking_token_budget or structured_outputs.
struct ThinkingTags {
  // The tags around a thought as token ids, one or more; none of both = there are no thoughts.
  std::vector<int32_t> start_ids = {};
  std::vector<int32_t> end_ids = {};
  // Tokens of the thought that is open at the prompt's end, tagged or not; -1 = none is.
  int num_prompt_tokens = -1;
  bool operator==(const ThinkingTags&) const = default;
};

// What an output must follow, all of it: exactly one of the first six. Compiled for the model's
// tokenizer by RequestPreparer, which refuses what is wrong with it.
struct StructuredOutputsParams {
  // A JSON Schema, of draft 7 or 2020-12. Properties come in its order.
  std::optional<std::string> json = {};
  // A regular expression that matches the whole output.
  std::optional<std::string> regex = {};
  // The output is one of these texts, one or more.
  std::optional<std::vector<std::string>> choice = {};
  // llama.cpp's GBNF; it begins with the rule `root`.
  std::optional<std::string> grammar = {};
  // true: any JSON object.
  bool json_object = false;
  // JSON that says where tags may stand and what is between them, as xgrammar has it.
  std::optional<std::string> structural_tag = {};
  // Of json and json_object. Between JSON's tokens stand nothing, one blank, or a newline and up to
  // 64 blanks; with disable_any_whitespace nothing or one blank behind commas and colons, and with
  // whitespace_pattern what this regular expression matches.
  bool disable_any_whitespace = false;
  // Of json: objects have the properties that they name, unless they say what others are.
  bool disable_additional_properties = false;
  std::optional<std::string> whitespace_pattern = {};

  // Throws Error(kInvalidArgument) for none of the six, several, and more than 1 MiB of text.
  void validate() const;
  bool operator==(const StructuredOutputsParams&) const = default;
};

// Every member has an initializer, because GCC would warn at {.temperature = 0} otherwise.
// docs/reference.md has the same as a table.
struct SamplingParams {
  // Completions of the prompt, 1 to 16,384; 1 if temperature is 0.
  int n = 1;
  // 0 to 2. 0 takes the most likely token (greedy); values below 0.01 count as 0.01.
  double temperature = 1.0;
  // Draw from the fewest most likely tokens whose probabilities reach this sum. Above 0, at most 1.
  double top_p = 1.0;
  // Draw from the top_k most likely tokens only; 0 or -1 = from all.
  int top_k = 0;
  // Drop tokens less likely than min_p times the most likely one. 0 to 1.
  double min_p = 0.0;
  // Subtracted from the logit of every token that is in the output, however often. -2 to 2.
  double presence_penalty = 0.0;
  // Subtracted from a token's logit for each time that it is in the output. -2 to 2.
  double frequency_penalty = 0.0;
  // Of tokens that are in the prompt or the output, a positive logit is divided by this number and
  // a negative one multiplied. Above 0.
  double repetition_penalty = 1.0;
  // Token id to bias. The bias is limited to [-100, 100] and added to the token's logit.
  std::map<int32_t, float> logit_bias = {};
  // Completion i draws with seed + i. Without a seed: see EngineConfig::seed.
  std::optional<int64_t> seed = {};
  // Longest output, at least 1. A value that does not fit in max_model_len is lowered to what fits.
  int max_tokens = 64;
  // The first min_tokens tokens contain no EOS and no stop token, and no stop text ends in them.
  int min_tokens = 0;
  // true: go on after the model's end-of-text token.
  bool ignore_eos = false;
  // Texts that end the output. It ends before the text, or after it with
  // include_stop_str_in_output.
  std::vector<std::string> stop = {};
  // Token ids that end the output.
  std::vector<int32_t> stop_token_ids = {};
  // The only token ids that may be drawn, one or more; none = all may.
  std::optional<std::vector<int32_t>> allowed_token_ids = {};
  // Words that the output must not contain. As in vLLM each word is tokenised twice, without and
  // with a space before it; the second form counts only if it has as many tokens as the first. The
  // last token of a form is banned whenever the output ends with the tokens before it.
  std::vector<std::string> bad_words = {};
  bool include_stop_str_in_output = false;
  // true: special tokens are left out of the text.
  bool skip_special_tokens = true;
  // How many of the most likely tokens are reported for each output token, with their
  // log-probabilities; the chosen token is always reported too. 0 to 20, or -1: the whole
  // vocabulary, if it has no more than 20 tokens. None = no log-probabilities.
  std::optional<int> logprobs = {};
  // The same for each token of the prompt. Such a request takes nothing from the prefix cache,
  // which holds no log-probabilities: its whole prompt is computed.
  std::optional<int> prompt_logprobs = {};
  // Tokens of a thought, after which the tag that ends it is given whatever the model would say.
  // The thought may begin in the prompt; its tokens there count. Only the first thought that is
  // open after the prompt is bounded. -1 or none = no bound.
  std::optional<int> thinking_token_budget = {};
  std::optional<ThinkingTags> thinking_tags = {};
  // None = any output. Where the model thinks, it is what follows the thought. Needs a tokenizer.
  std::optional<StructuredOutputsParams> structured_outputs = {};
  // Requests with a lower number are served first; of equal ones, the first that came. Other values
  // than 0 need EngineConfig::scheduling_policy "priority".
  int priority = 0;
  // Requests share what the prefix cache holds only with those of the same salt, so that nobody can
  // find out by timing what others asked who does not know theirs. None = shared by all that have
  // none. 1 to 1,024 bytes.
  std::optional<std::string> cache_salt = {};
  // Tokens whose places in the text the outputs tell: see TokenMark. They are part of the text,
  // whatever skip_special_tokens says.
  std::vector<int32_t> marked_token_ids = {};
  RequestOutputKind output_kind = RequestOutputKind::kCumulative;

  // Throws Error(kInvalidArgument) with vLLM's sentence for the first parameter out of range.
  void validate() const;
  bool operator==(const SamplingParams&) const = default;
};

}  // namespace nanovllm
