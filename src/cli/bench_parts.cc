#include "cli/bench_parts.h"

#include <cmath>

#include "base/check.h"
#include "base/message.h"
#include "cli/abort_reason.h"
#include "cli/terminal.h"
#include "engine/load.h"

namespace nanovllm::cli::bench {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(p * static_cast<double>(values.size() - 1)))];
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

SamplingParams fixed_length(double temperature, int num_tokens) {
  SamplingParams params;
  params.temperature = temperature;
  params.max_tokens = num_tokens;
  params.ignore_eos = true;
  params.output_kind = RequestOutputKind::kFinalOnly;
  return params;
}

std::optional<Replay> read_replay(const std::string& path) {
  return path.empty() ? std::nullopt : std::make_optional<Replay>(path);
}

LLM load(const std::string& model, const EngineConfig& config, std::optional<Replay>& replay) {
  BenchmarkParts parts;
  if (replay) parts.dictated = replay->dictated();
  LLM llm(LLMEngine(load_engine_core(model, config, nullptr, &parts)));
  if (replay) replay->resolve(llm.engine());
  return llm;
}

Run run(LLM& llm, const std::vector<Prompt>& prompts, const std::vector<SamplingParams>& params,
        const std::string& label, bool quiet) {
  Run result;
  Progress progress(label, static_cast<int64_t>(prompts.size()), !quiet);
  int64_t done = 0;
  double num_tokens = 0, all_tokens = 0;  // of the outputs
  for (const SamplingParams& one : params) all_tokens += one.max_tokens;
  const auto start = Clock::now();
  result.outputs = llm.generate(prompts, params, [&](const auto& changed, const StepStats& step) {
    for (const RequestOutput& output : changed) done += output.finished ? 1 : 0;
    result.phases.add(step);
    result.drafts.add(step);
    num_tokens += static_cast<double>(step.num_generation_tokens);
    progress.update(done, num_tokens / all_tokens, step);
    return !InterruptGuard::interrupted();
  });
  result.seconds = seconds_since(start);
  progress.clear();
  if (InterruptGuard::interrupted()) throw Interrupted();
  for (const RequestOutput& output : result.outputs) check_served(output.outputs.front());
  return result;
}

void check_served(const CompletionOutput& completion) {
  const std::string* reason = abort_reason(completion);
  if (reason == nullptr) return;
  throw_error(ErrorCode::kInternal, "the engine aborted a request: {}; nothing was measured",
              *reason);
}

void check_lengths(const EngineInfo& info, int input_len, int output_len) {
  if (int64_t{input_len} + output_len <= info.max_model_len) return;
  throw_error(ErrorCode::kInvalidArgument,
              "requests of {} tokens in and {} out are longer than max_model_len, which is {}; "
              "choose shorter ones, or raise --max-model-len as far as the model goes",
              input_len, output_len, info.max_model_len);
}

std::string shown_latency(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

void print_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  for (const auto& [name, value] : rows) fmt::print("{:<34} {:>16}\n", name, value);
}

ordered_json describe(const EngineInfo& info, const std::string& model) {
  return {{"model", model},
          {"architecture", info.architecture},
          {"device", info.device},
          {"dtype", info.dtype},
          {"load_seconds", info.load_seconds}};
}

Command until_interrupted(Command command) {
  return [command = std::move(command)] {
    try {
      return command();
    } catch (const Interrupted&) {
      print_message("nanovllm: interrupted; a benchmark has no partial result\n");
      return kExitInterrupted;
    }
  };
}

CLI::Option* add_replay(CLI::App& app, std::string& path) {
  const auto is_named = [](const std::string& name) {
    return name.empty() ? "it needs a file of JSON lines" : "";
  };
  return app
      .add_option("--replay", path,
                  "JSON lines {\"prompt\", \"token_ids\"}: all is computed, but these outputs "
                  "count as drawn, so that drafts meet real texts whatever the model")
      ->check(CLI::Validator(is_named, ""));
}

}  // namespace nanovllm::cli::bench
