// Flags that several commands share: the engine's and the sampler's.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling_table.h"
#include "nanovllm/config.h"

namespace nanovllm::cli {

// Every field of EngineConfig but the trace as a flag of the same name with dashes; `seed` is
// --engine-seed.
void add_engine_options(CLI::App& app, EngineConfig& config);
// --trace, for commands that serve requests.
void add_trace_option(CLI::App& app, EngineConfig& config);

// Refuses smaller integers; CLI11's own checks tell their range with every digit of a double's.
CLI::Validator at_least(int least);

// A flag for a seed, any of 64 bits with a sign; CLI11's own would clamp large ones.
CLI::Option* add_seed(CLI::App& app, const std::string& flag, int64_t& seed,
                      const std::string& help);

// The sampling flags that were given; the others keep the model's defaults.
class SamplingOptions {
 public:
  // max_tokens: what holds where neither a flag nor the model says.
  void add_to(CLI::App& app, const std::string& max_tokens, bool in_chat);
  SamplingParams apply_to(SamplingParams params) const;
  bool sets_temperature() const;

 private:
  SamplingParams values_;
  std::vector<std::pair<const Parameter*, const CLI::Option*>> flags_;
};

// "512", "64K", "1.5G": bytes, less than 2^62, with the suffixes of parse_quantity(). Throws
// Error(kInvalidArgument).
int64_t parse_bytes(const std::string& text);

}  // namespace nanovllm::cli
