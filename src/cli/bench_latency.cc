// `nanovllm bench latency`: one batch, measured apart for prefill and decode.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "cli/bench_parts.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace nanovllm::cli {
namespace bench {
namespace {

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

// Those of the longest request of a file's batch, so that what holds for it holds for all.
void take_lengths(LatencyOptions& options, const Replay& replay) {
  options.input_len = options.output_len = 0;
  for (int64_t i = 0; i < std::min<int64_t>(options.batch_size, replay.size()); ++i) {
    const auto input = static_cast<int>(replay.input_tokens(i));
    const auto output = static_cast<int>(replay.output_tokens(i));
    if (input + output <= options.input_len + options.output_len) continue;
    options.input_len = input;
    options.output_len = output;
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

struct Latencies {
  std::vector<double> latency, prefill, decode;  // seconds, and tokens a second, of each batch
  DraftCounts drafts = {};                       // of the last one
  int64_t num_output_tokens = 0;                 // of a batch
};

Latencies measure(LLM& llm, const LatencyOptions& options, const std::optional<Replay>& replay) {
  PromptSource source(llm.engine().info().vocab_size, options.seed);
  Latencies all;
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
    all.latency.push_back(result.seconds);
    all.prefill.push_back(result.phases.prefill_speed());
    all.decode.push_back(result.phases.decode_speed());
    all.drafts = result.drafts;
    all.num_output_tokens = 0;
    for (const RequestOutput& output : result.outputs) {
      all.num_output_tokens += std::ssize(output.outputs.front().token_ids);
    }
  }
  return all;
}

int bench_latency(LatencyOptions options) {
  const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
  std::optional<Replay> replay = read_replay(options.replay);
  LLM llm = load(options.model.path, options.engine, replay);
  const EngineInfo& info = llm.engine().info();
  if (replay) take_lengths(options, *replay);
  check_lengths(info, options.input_len, options.output_len);
  check_runs_at_once(info, options);
  const auto& [latency, prefill, decode, drafts, num_output_tokens] = measure(llm, options, replay);
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

}  // namespace
}  // namespace bench

Command add_bench_latency(CLI::App& app) {
  auto options = std::make_shared<bench::LatencyOptions>();
  app.add_option("--batch-size", options->batch_size, "requests at once")
      ->check(at_least(1))
      ->capture_default_str();
  auto* input_len = app.add_option("--input-len", options->input_len, "prompt tokens")
                        ->check(at_least(1))
                        ->capture_default_str();
  auto* output_len = app.add_option("--output-len", options->output_len, "output tokens")
                         ->check(at_least(1))
                         ->capture_default_str();
  bench::add_replay(app, options->replay)->excludes(input_len)->excludes(output_len);
  app.add_option("--num-warmup", options->num_warmup, "runs before the measured ones")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--num-iters", options->num_iters, "measured runs; medians are shown")
      ->check(at_least(1))
      ->capture_default_str();
  bench::add_common(app, *options);
  return bench::until_interrupted([options] {
    bench::find_model(*options);
    return bench::bench_latency(*options);
  });
}

}  // namespace nanovllm::cli
