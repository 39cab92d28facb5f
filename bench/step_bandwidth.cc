// How much of the memory's bandwidth a decode step of one request reaches on the CPU. Memory of a
// virtual machine is fast or slow from one second to the next, so every step is compared with reads
// just before and just after it, and counts only where those agree.
// Usage: nanovllm_step_bandwidth MODEL [THREADS [CONTEXT [STEPS]]]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "ceilings.h"
#include "models/load_config.h"
#include "nanovllm/error.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm {
namespace {

constexpr double kBand = 5e9;           // bytes/s; steps are shown by what the probe read
constexpr double kMaxDifference = 0.1;  // of the reads before and after a step

struct Options {
  std::string model;
  int num_threads = 0;
  int context = 1;  // tokens
  int num_steps = 500;
};

struct Step {
  double probe, rate;  // bytes/s
};

// But for the embedding's table, of which a step reads one row.
int64_t weight_bytes_of_step(const LLMEngine& engine, const std::string& model) {
  const ModelConfig config = load_model_config(model);
  return engine.info().weight_bytes - int64_t{config.vocab_size} * config.hidden_size *
                                          static_cast<int64_t>(size_of(config.dtype));
}

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Step> measure(const Options& options) {
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = options.num_threads;
  config.max_num_seqs = 1;
  LLMEngine engine(options.model, config);
  CpuBackend prober({.num_threads = options.num_threads, .max_isa = {}});
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = options.num_steps + 1;
  engine.add_request(std::vector<int32_t>(static_cast<size_t>(options.context), 1), params);
  while (engine.step().empty()) continue;  // the prompt, perhaps in chunks
  const int64_t weight_bytes = weight_bytes_of_step(engine, options.model);
  int64_t num_tokens = options.context;  // of which a step reads the keys and values
  std::vector<Step> steps;
  double before = read_once(prober);
  while (!engine.is_finished()) {
    const int64_t bytes = weight_bytes + ++num_tokens * engine.info().kv_bytes_per_token;
    const double rate = static_cast<double>(bytes) / seconds_of([&] { engine.step(); });
    const double after = read_once(prober);
    if (std::abs(before - after) <= kMaxDifference * std::max(before, after)) {
      steps.push_back({(before + after) / 2, rate});
    }
    before = after;
  }
  return steps;
}

// Of sorted values.
double quantile(const std::vector<double>& values, double share) {
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void print_band(const std::vector<Step>& steps, double low, double high) {
  std::vector<double> shares, rates;
  for (const Step& step : steps) {
    if (step.probe < low || step.probe >= high) continue;
    shares.push_back(100 * step.rate / step.probe);
    rates.push_back(step.rate / 1e9);
  }
  if (shares.empty()) return;
  std::ranges::sort(shares);
  std::ranges::sort(rates);
  fmt::print("| {:.0f} to {:.0f} | {} | {:.1f} | {:.0f}% | {:.0f}% to {:.0f}% |\n", low / 1e9,
             high / 1e9, shares.size(), quantile(rates, 0.5), quantile(shares, 0.5),
             quantile(shares, 0.25), quantile(shares, 0.75));
}

void run(const Options& options) {
  const std::vector<Step> steps = measure(options);
  double most = 0;
  for (const Step& step : steps) most = std::max(most, step.probe);
  fmt::print(
      "| the probe reads, GB/s | steps | a step reads, GB/s | share, median | middle half |\n"
      "|---|---|---|---|---|\n");
  for (double low = 0; low <= most; low += kBand) print_band(steps, low, low + kBand);
}

// Throws Error(kInvalidArgument).
int positive(int argc, char** argv, int index, int otherwise) {
  if (argc <= index) return otherwise;
  const int value = std::atoi(argv[index]);
  if (value < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" should be an integer from 1 on", argv[index]));
  }
  return value;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  using namespace nanovllm;  // NOLINT(google-build-using-namespace)
  if (argc < 2) {
    fmt::print(stderr, "usage: {} MODEL [THREADS [CONTEXT [STEPS]]]\n", argv[0]);
    return 2;
  }
  try {
    Options options;
    options.model = argv[1];
    options.num_threads = positive(argc, argv, 2, options.num_threads);
    options.context = positive(argc, argv, 3, options.context);
    options.num_steps = positive(argc, argv, 4, options.num_steps);
    run(options);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "nanovllm_step_bandwidth: {}\n", error.what());
    return 1;
  }
}
