// EngineConfig::speculative_config, with vLLM's keys and defaults.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/drafting.h"
#include "engine/suffix_drafter.h"

namespace nanovllm {

struct SpeculativeConfig {
  // Most drafts while first to last sequences decode.
  struct Range {
    int first, last, num_tokens;
  };

  SuffixDrafterOptions suffix = {};  // ngram: the same, within a sequence's own tokens
  double min_token_prob = 0;
  std::string model = {};         // draft_model: its folder or GGUF file; empty = another method
  std::string quantization = {};  // of its weights, as EngineConfig::quantization
  int max_model_len = 0;          // tokens that it sees; 0 = as many as both models were made for
  int num_speculative_tokens = 0;
  // rejection_sample_method synthetic, for benchmarks: the tokens that a step gives on average
  // where it verifies all num_speculative_tokens; 0 = drafts are verified.
  double synthetic_acceptance_length = 0;
  std::vector<Range> per_batch_size = {};

  int most_tokens(int num_sequences) const;
  // The probability of each draft, if those before it are accepted, that gives that length; else 0.
  double synthetic_acceptance() const;
};

// None for an empty text and for "null". Throws Error(kInvalidArgument) with a sentence that names
// the key.
std::optional<SpeculativeConfig> parse_speculative_config(const std::string& json);

// The same JSON with the draft model at `find(model)`, for names of other places than a disk;
// without a draft model it stays as it is. Throws as parse_speculative_config() and find() do.
std::string with_draft_model(const std::string& json,
                             const std::function<std::string(const std::string&)>& find);

// What a method proposes, of draft_model all but the drafter, and text that grammars force.
// `tokenizer` must outlive it; null = there is none, and so are no grammars.
DraftingParts make_drafting(const SpeculativeConfig& config, const Tokenizer* tokenizer);

}  // namespace nanovllm
