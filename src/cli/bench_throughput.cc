// `nanovllm bench throughput`: many requests that wait from the start.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "cli/bench_parts.h"
#include "cli/commands.h"
#include "cli/nano_vllm_workload.h"
#include "cli/terminal.h"

namespace nanovllm::cli {
namespace bench {
namespace {

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

}  // namespace
}  // namespace bench

Command add_bench_throughput(CLI::App& app) {
  auto options = std::make_shared<bench::ThroughputOptions>();
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
  bench::add_replay(app, options->replay)->excludes(input_len)->excludes(output_len);
  bench::add_common(app, *options);
  return bench::until_interrupted([options] {
    bench::find_model(*options);
    return bench::bench_throughput(*options);
  });
}

}  // namespace nanovllm::cli
