// Flags that several commands share: the engine's and the sampler's.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/config.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm::cli {

// Every field of EngineConfig but the trace as a flag of the same name with dashes; `seed` is
// --engine-seed.
void add_engine_options(CLI::App& app, EngineConfig& config);
// --trace, for commands that serve requests.
void add_trace_option(CLI::App& app, EngineConfig& config);

// Refuses smaller integers; CLI11's own checks tell their range with every digit of a double's.
CLI::Validator at_least(int least);

// A flag for a seed from 0 to 2^64-1; CLI11's own would wrap negative numbers and clamp large ones.
CLI::Option* add_seed(CLI::App& app, const char* flag, uint64_t& seed, const char* help);

// The sampling flags that were given; the others keep the model's defaults.
class SamplingOptions {
 public:
  // max_tokens: what holds where neither a flag nor the model says.
  void add_to(CLI::App& app, const std::string& max_tokens);
  // Several completions, and log-probabilities.
  void add_details_to(CLI::App& app);
  SamplingParams apply_to(SamplingParams params) const;
  bool sets_temperature() const { return temperature_.has_value(); }

 private:
  std::optional<int> n_, top_k_, max_tokens_, min_tokens_, logprobs_, prompt_logprobs_;
  std::optional<double> temperature_, top_p_, min_p_;
  std::optional<double> presence_penalty_, frequency_penalty_, repetition_penalty_;
  std::optional<std::optional<uint64_t>> seed_;  // --seed -1 asks for none
  std::vector<std::string> stop_, bad_words_, logit_bias_;
  std::vector<int32_t> stop_token_ids_;
  bool ignore_eos_ = false, include_stop_str_in_output_ = false, keep_special_tokens_ = false;
};

// "512", "64K", "1.5G": bytes with the binary suffixes K, M, G, T, less than 2^62. Throws
// Error(kInvalidArgument).
int64_t parse_bytes(const std::string& text);

}  // namespace nanovllm::cli
