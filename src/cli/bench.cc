// `nanovllm bench`: throughput over many requests, latency of one batch.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/message.h"
#include "cli/abort_reason.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/nano_vllm_workload.h"
#include "cli/options.h"
#include "cli/replay.h"
#include "cli/terminal.h"
#include "engine/load.h"
#include "nanovllm/llm.h"

namespace nanovllm::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// p in [0, 1]; values need not be sorted.
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

SamplingParams fixed_length(double temperature, int num_tokens) {
  SamplingParams params;
  params.temperature = temperature;
  params.max_tokens = num_tokens;
  params.ignore_eos = true;
  params.output_kind = RequestOutputKind::kFinalOnly;
  return params;
}

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

LLM load(const std::string& model, const EngineConfig& config, std::optional<Replay>& replay) {
  BenchmarkParts parts;
  if (replay) parts.dictated = replay->dictated();
  LLM llm(LLMEngine(load_engine_core(model, config, nullptr, &parts)));
  if (replay) replay->resolve(llm.engine());
  return llm;
}

std::optional<Replay> read_replay(const std::string& path) {
  return path.empty() ? std::nullopt : std::make_optional<Replay>(path);
}

struct Run {
  std::vector<RequestOutput> outputs;
  PhaseTimes phases;
  DraftCounts drafts;
  double seconds = 0;
};

struct Interrupted {};

void check_served(const CompletionOutput& completion) {
  const std::string* reason = abort_reason(completion);
  if (reason == nullptr) return;
  throw_error(ErrorCode::kInternal, "the engine aborted a request: {}; nothing was measured",
              *reason);
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

// What would be cut short is not what was asked to be measured.
void check_lengths(const EngineInfo& info, int input_len, int output_len) {
  if (int64_t{input_len} + output_len <= info.max_model_len) return;
  throw_error(ErrorCode::kInvalidArgument,
              "requests of {} tokens in and {} out are longer than max_model_len, which is {}; "
              "choose shorter ones, or raise --max-model-len as far as the model goes",
              input_len, output_len, info.max_model_len);
}

// Shown to people.
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

struct ThroughputOptions {
  ModelOption model;
  std::string replay;
  int num_prompts = 0;
  int input_len = 0;
  int output_len = 0;
  int64_t seed = 0;
  bool json = false;
  bool quiet = false;
  EngineConfig engine;
};

int64_t num_requests(const ThroughputOptions& options, const std::optional<Replay>& replay) {
  if (options.num_prompts > 0) return options.num_prompts;
  return replay ? replay->size() : static_cast<int64_t>(kNanoVllmWorkload.size());
}

RequestLengths lengths_of(const ThroughputOptions& options, const std::optional<Replay>& replay,
                          int64_t request) {
  if (replay) {
    return {static_cast<int>(replay->input_tokens(request)),
            static_cast<int>(replay->output_tokens(request))};
  }
  if (options.input_len == 0 && options.output_len == 0) {
    return kNanoVllmWorkload[static_cast<size_t>(request) % kNanoVllmWorkload.size()];
  }
  return {options.input_len > 0 ? options.input_len : 512,
          options.output_len > 0 ? options.output_len : 128};
}

struct Served {
  int64_t input_tokens = 0, output_tokens = 0, preemptions = 0;
  double seconds = 0;
  std::vector<double> ttft, tpot;  // seconds; a request's first token counts from the run's start
  DraftCounts drafts = {};

  void add(const RequestOutput& output, double now) {
    check_served(output.outputs.front());
    const auto count = static_cast<int64_t>(output.outputs.front().token_ids.size());
    const double after_first = output.metrics.time_to_finish - output.metrics.time_to_first_token;
    output_tokens += count;
    preemptions += output.num_preemptions;
    ttft.push_back(now - after_first);
    if (count > 1) tpot.push_back(after_first / static_cast<double>(count - 1));
  }
};

// All requests wait from the start, but no more of them are made than steps can choose from: what
// is done does not depend on it, and memory holds any number.
Served serve(LLMEngine& engine, const ThroughputOptions& options,
             const std::optional<Replay>& replay) {
  const int64_t total = num_requests(options, replay);
  const int64_t window = 2 * int64_t{options.engine.max_num_seqs};
  PromptSource source(engine.info().vocab_size, options.seed);
  Progress progress("Benchmark", total, !options.quiet);
  Served served;
  int64_t made = 0, done = 0;
  double num_tokens = 0, tokens_of_made = 0;  // of the outputs
  const auto start = Clock::now();
  while (done < total) {
    for (; made < total && made - done < window; ++made) {
      const RequestLengths lengths = lengths_of(options, replay, made);
      if (replay) {
        engine.add_request(replay->prompt(made), replay->params(made, made / replay->size()));
      } else {
        engine.add_request(source.draw(lengths.input), fixed_length(0.6, lengths.output));
      }
      served.input_tokens += lengths.input;
      tokens_of_made += lengths.output;
    }
    for (const RequestOutput& output : engine.step()) {
      if (!output.finished) continue;
      served.add(output, seconds_since(start));
      ++done;
    }
    num_tokens += static_cast<double>(engine.last_step().num_generation_tokens);
    served.drafts.add(engine.last_step());
    const double all_tokens =
        tokens_of_made / static_cast<double>(made) * static_cast<double>(total);
    progress.update(done, num_tokens / all_tokens, engine.last_step());
    if (InterruptGuard::interrupted()) throw Interrupted();
  }
  served.seconds = seconds_since(start);
  return served;
}

int bench_throughput(const ThroughputOptions& options) {
  const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
  std::optional<Replay> replay = read_replay(options.replay);
  LLM llm = load(options.model.path, options.engine, replay);
  const EngineInfo& info = llm.engine().info();
  const int64_t requests = num_requests(options, replay);
  const auto num_kinds = replay ? replay->size() : std::ssize(kNanoVllmWorkload);
  for (int64_t i = 0; i < std::min<int64_t>(requests, num_kinds); ++i) {
    const RequestLengths lengths = lengths_of(options, replay, i);
    check_lengths(info, lengths.input, lengths.output);
  }
  PromptSource others(info.vocab_size, ~options.seed);
  run(llm, {others.draw(16)}, {fixed_length(0.6, 4)}, "Warming up", true);
  const Served served = serve(llm.engine(), options, replay);
  llm.engine().finish_trace();

  const auto& [input_tokens, output_tokens, preemptions, seconds, ttft, tpot, drafts] = served;
  const auto per_second = [&](int64_t tokens) {
    return static_cast<double>(tokens) / served.seconds;
  };
  ordered_json line = describe(info, options.model.name);
  if (replay) line["replay"] = options.replay;
  line["requests"] = requests;
  line["input_tokens"] = input_tokens;
  line["output_tokens"] = output_tokens;
  line["seconds"] = seconds;
  line["output_tokens_per_second"] = per_second(output_tokens);
  line["total_tokens_per_second"] = per_second(input_tokens + output_tokens);
  line["requests_per_second"] = per_second(requests);
  line["ttft_seconds"] = {
      {"mean", mean(ttft)}, {"p50", percentile(ttft, 0.5)}, {"p99", percentile(ttft, 0.99)}};
  if (!tpot.empty()) {
    line["tpot_seconds"] = {
        {"mean", mean(tpot)}, {"p50", percentile(tpot, 0.5)}, {"p99", percentile(tpot, 0.99)}};
  }
  line["preemptions"] = preemptions;
  drafts.describe(line);
  if (options.json) {
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitOk;
  }
  fmt::print("{} on {}, {}\n", bold(stdout, options.model.name), info.device, info.dtype);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"requests", fmt::format("{}", requests)},
      {"input tokens", fmt::format("{}", input_tokens)},
      {"output tokens", fmt::format("{}", output_tokens)},
      {"time", fmt::format("{:.2f} s", seconds)},
      {"output throughput", fmt::format("{:.1f} tok/s", per_second(output_tokens))},
      {"total throughput", fmt::format("{:.1f} tok/s", per_second(input_tokens + output_tokens))},
      {"time to first token, mean", shown_latency(mean(ttft))},
      {"time to first token, p99", shown_latency(percentile(ttft, 0.99))},
      {"preemptions", fmt::format("{}", preemptions)}};
  if (!tpot.empty()) {
    rows.emplace_back("time per output token, mean", fmt::format("{:.2f} ms", 1e3 * mean(tpot)));
    rows.emplace_back("time per output token, p99",
                      fmt::format("{:.2f} ms", 1e3 * percentile(tpot, 0.99)));
  }
  drafts.describe(rows);
  print_table(rows);
  return kExitOk;
}

struct LatencyOptions {
  ModelOption model;
  std::string replay;
  int batch_size = 1;
  int input_len = 128;
  int output_len = 128;
  int num_warmup = 1;
  int num_iters = 3;
  int64_t seed = 0;
  bool json = false;
  bool quiet = false;
  EngineConfig engine;
};

// The longest requests of a batch of a file, so that what holds for them holds for all.
void take_lengths(LatencyOptions& options, const Replay& replay) {
  options.input_len = options.output_len = 0;
  for (int64_t i = 0; i < options.batch_size; ++i) {
    options.input_len = std::max(options.input_len, static_cast<int>(replay.input_tokens(i)));
    options.output_len = std::max(options.output_len, static_cast<int>(replay.output_tokens(i)));
  }
}

// Requests that wait for others take longer than a batch does.
void check_runs_at_once(const EngineInfo& info, const LatencyOptions& options) {
  const auto check = [&](int64_t needed, int64_t there, const char* of_what, const char* flag) {
    if (needed <= there) return;
    throw_error(ErrorCode::kInvalidArgument,
                "a batch of {} needs {} {} at once and there are {}; ask for less, or raise {}",
                options.batch_size, needed, of_what, there, flag);
  };
  check(options.batch_size, options.engine.max_num_seqs, "sequences in a step", "--max-num-seqs");
  check(options.batch_size, options.engine.max_num_batched_tokens, "tokens in a step",
        "--max-num-batched-tokens");
  // The last token is never read, so that nothing of it is kept.
  const int64_t num_tokens = int64_t{options.input_len} + options.output_len - 1;
  check(options.batch_size * info.blocks_for(num_tokens), info.num_kvcache_blocks,
        "blocks of the KV cache", "--num-kvcache-blocks or --kv-cache-memory");
  if (info.num_states > 0) {
    check(options.batch_size, info.num_states, "states of sequences", "--state-cache-memory");
  }
}

int bench_latency(LatencyOptions options) {
  const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
  std::optional<Replay> replay = read_replay(options.replay);
  LLM llm = load(options.model.path, options.engine, replay);
  const EngineInfo& info = llm.engine().info();
  if (replay) take_lengths(options, *replay);
  PromptSource source(info.vocab_size, options.seed);
  check_lengths(info, options.input_len, options.output_len);
  check_runs_at_once(info, options);
  std::vector<double> latency, prefill, decode;
  DraftCounts drafts;
  int64_t num_output_tokens = 0;  // of a batch
  for (int64_t i = 0; i < int64_t{options.num_warmup} + options.num_iters; ++i) {
    std::vector<Prompt> prompts;
    std::vector<SamplingParams> params;
    for (int j = 0; j < options.batch_size; ++j) {
      prompts.push_back(replay ? replay->prompt(j) : source.draw(options.input_len));
      params.push_back(replay ? replay->params(j, i * options.batch_size + j / replay->size())
                              : fixed_length(0, options.output_len));
    }
    const bool warmup = i < options.num_warmup;
    const Run result =
        run(llm, prompts, params, warmup ? "Warming up" : "Iteration", options.quiet);
    if (warmup) continue;
    latency.push_back(result.seconds);
    prefill.push_back(result.phases.prefill_speed());
    decode.push_back(result.phases.decode_speed());
    drafts = result.drafts;
    num_output_tokens = 0;
    for (const RequestOutput& output : result.outputs) {
      num_output_tokens += std::ssize(output.outputs.front().token_ids);
    }
  }
  llm.engine().finish_trace();
  if (options.json) {
    ordered_json line = describe(info, options.model.name);
    line["batch_size"] = options.batch_size;
    if (replay) {
      line["replay"] = options.replay;
      line["output_tokens"] = num_output_tokens;
    } else {
      line["input_len"] = options.input_len;
      line["output_len"] = options.output_len;
    }
    line["latency_seconds"] = {
        {"median", percentile(latency, 0.5)}, {"p99", percentile(latency, 0.99)}, {"all", latency}};
    line["prefill_tokens_per_second"] = percentile(prefill, 0.5);
    // A single token comes from the prefill.
    if (options.output_len > 1) line["decode_tokens_per_second"] = percentile(decode, 0.5);
    drafts.describe(line);
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitOk;
  }
  const std::string of_what =
      replay
          ? fmt::format("of {}, {} out in all", options.replay, num_output_tokens)
          : fmt::format("{} in, {} out", counted(options.input_len, "token"), options.output_len);
  fmt::print("{} on {}, {}; {}, {}; median of {}\n", bold(stdout, options.model.name), info.device,
             info.dtype, counted(options.batch_size, "request"), of_what, options.num_iters);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"latency", shown_latency(percentile(latency, 0.5))},
      {"latency, p99", shown_latency(percentile(latency, 0.99))},
      {"prefill", fmt::format("{:.1f} tok/s", percentile(prefill, 0.5))}};
  if (options.output_len > 1) {
    rows.emplace_back("decode", fmt::format("{:.1f} tok/s", percentile(decode, 0.5)));
  }
  drafts.describe(rows);
  print_table(rows);
  return kExitOk;
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

template <typename Options>
void find_model(Options& options) {
  options.engine.validate();
  options.model.find(options.quiet);
}

CLI::Option* add_replay(CLI::App& app, std::string& path) {
  return app.add_option(
      "--replay", path,
      "JSON lines {\"prompt\", \"token_ids\"}: all is computed, but these outputs "
      "count as drawn, so that drafts meet real texts whatever the model");
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

}  // namespace

Command add_bench_throughput(CLI::App& app) {
  auto options = std::make_shared<ThroughputOptions>();
  app.add_option("--num-prompts", options->num_prompts,
                 "requests (default: the 256 of nano-vLLM's bench.py, or those of --replay)")
      ->check(at_least(1));
  auto* input_len =
      app.add_option("--input-len", options->input_len,
                     "prompt tokens of every request (default: nano-vLLM's 100 to 1024; 512 with "
                     "--output-len)")
          ->check(at_least(1));
  auto* output_len =
      app.add_option("--output-len", options->output_len,
                     "output tokens of every request (default: nano-vLLM's 100 to 1024; 128 with "
                     "--input-len)")
          ->check(at_least(1));
  add_replay(app, options->replay)->excludes(input_len)->excludes(output_len);
  add_common(app, *options);
  return until_interrupted([options] {
    find_model(*options);
    return bench_throughput(*options);
  });
}

Command add_bench_latency(CLI::App& app) {
  auto options = std::make_shared<LatencyOptions>();
  app.add_option("--batch-size", options->batch_size, "requests at once")
      ->check(at_least(1))
      ->capture_default_str();
  auto* input_len = app.add_option("--input-len", options->input_len, "prompt tokens")
                        ->check(at_least(1))
                        ->capture_default_str();
  auto* output_len = app.add_option("--output-len", options->output_len, "output tokens")
                         ->check(at_least(1))
                         ->capture_default_str();
  add_replay(app, options->replay)->excludes(input_len)->excludes(output_len);
  app.add_option("--num-warmup", options->num_warmup, "runs before the measured ones")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--num-iters", options->num_iters, "measured runs; medians are shown")
      ->check(at_least(1))
      ->capture_default_str();
  add_common(app, *options);
  return until_interrupted([options] {
    find_model(*options);
    return bench_latency(*options);
  });
}

}  // namespace nanovllm::cli
