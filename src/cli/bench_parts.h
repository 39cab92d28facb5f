// What the benchmarks of an engine in this process share.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/options.h"
#include "cli/replay.h"
#include "nanovllm/llm.h"

namespace nanovllm::cli::bench {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start);
// p in [0, 1]; values need not be sorted.
double percentile(std::vector<double> values, double p);
double mean(const std::vector<double>& values);

// Random prompts that share no prefix, so that no run profits from the prefix cache; ids 0..10000
// as nano-vLLM draws them, fewer where the vocabulary is smaller.
class PromptSource {
 public:
  PromptSource(int vocab_size, int64_t seed)
      : generator_(static_cast<uint64_t>(seed)), token_(0, std::min(vocab_size - 1, 10000)) {}
  Prompt draw(int length) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = token_(generator_);
    return ids;
  }

 private:
  std::mt19937_64 generator_;
  std::uniform_int_distribution<int32_t> token_;
};

SamplingParams fixed_length(double temperature, int num_tokens);

// Time and tokens of the steps of one run, apart for steps that only prefill, only decode, or do
// both.
struct PhaseTimes {
  double prefill_seconds = 0, decode_seconds = 0, mixed_seconds = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;

  void add(const StepStats& step) {
    if (step.num_prefill_tokens > 0 && step.num_decode_tokens > 0) {
      mixed_seconds += step.seconds;
    } else if (step.num_prefill_tokens > 0) {
      prefill_seconds += step.seconds;
      prefill_tokens += step.num_prefill_tokens;
    } else {
      decode_seconds += step.seconds;
      decode_tokens += step.num_kept_decode_tokens();
    }
  }
  double prefill_speed() const {
    return prefill_seconds > 0 ? static_cast<double>(prefill_tokens) / prefill_seconds : 0;
  }
  double decode_speed() const {
    return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0;
  }
};

// What became of the drafts of all steps.
struct DraftCounts {
  int64_t num_draft_tokens = 0, num_accepted_tokens = 0, num_kept_tokens = 0;

  void add(const StepStats& step) {
    num_draft_tokens += step.num_draft_tokens;
    num_accepted_tokens += step.num_accepted_tokens();
    num_kept_tokens += step.num_kept_decode_tokens();
  }
  // Each sequence has one in each step, and the drafts that were right.
  double tokens_a_step() const {
    const int64_t num_turns = num_kept_tokens - num_accepted_tokens;
    return num_turns > 0 ? static_cast<double>(num_kept_tokens) / static_cast<double>(num_turns)
                         : 0;
  }
  void describe(ordered_json& line) const {
    if (num_draft_tokens == 0) return;
    line["draft_tokens"] = num_draft_tokens;
    line["accepted_tokens"] = num_accepted_tokens;
    line["decode_tokens_a_step"] = tokens_a_step();
  }
  void describe(std::vector<std::pair<std::string, std::string>>& rows) const {
    if (num_draft_tokens == 0) return;
    rows.emplace_back(
        "drafts", fmt::format("{} of {} tokens accepted", num_accepted_tokens, num_draft_tokens));
    rows.emplace_back("decode, tokens a step", fmt::format("{:.2f}", tokens_a_step()));
  }
};

// The options' --replay; none where it was not given.
std::optional<Replay> read_replay(const std::string& path);
// Its replay is ready to be asked for.
LLM load(const std::string& model, const EngineConfig& config, std::optional<Replay>& replay);

// Thrown where Ctrl-C was pressed.
struct Interrupted {};

struct Run {
  std::vector<RequestOutput> outputs;
  PhaseTimes phases;
  DraftCounts drafts;
  double seconds = 0;
};
Run run(LLM& llm, const std::vector<Prompt>& prompts, const std::vector<SamplingParams>& params,
        const std::string& label, bool quiet);

// Throws Error(kInternal) where the engine aborted it.
void check_served(const CompletionOutput& completion);
// What would be cut short is not what was asked to be measured.
void check_lengths(const EngineInfo& info, int input_len, int output_len);

// Shown to people.
std::string shown_latency(double seconds);
void print_table(const std::vector<std::pair<std::string, std::string>>& rows);
ordered_json describe(const EngineInfo& info, const std::string& model);

// With a line and status 130 where it was interrupted.
Command until_interrupted(Command command);
CLI::Option* add_replay(CLI::App& app, std::string& path);

template <typename Options>
void find_model(Options& options) {
  options.engine.validate();
  options.model.find(options.quiet);
  find_draft_model(options.engine, options.quiet);
}

template <typename Options>
void add_common(CLI::App& app, Options& options) {
  options.model.add_to(app);
  add_seed(app, "--seed", options.seed, "of the random prompts");
  app.add_flag("--json", options.json, "one JSON object instead of the table");
  app.add_flag("-q,--quiet", options.quiet, "no progress display");
  add_engine_options(app, options.engine);
  add_trace_option(app, options.engine);
}

}  // namespace nanovllm::cli::bench
