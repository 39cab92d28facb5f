// Sampling from rows of 151,936 logits (Qwen3), with each parameter alone and as chat models ask
// for them together. "trained" rows look as a trained model's do: few tokens count. "flat" ones are
// the worst case.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"

namespace nanovllm {
namespace {

constexpr int64_t kVocabSize = 151936;

struct Kind {
  const char* name;
  SamplingRow row;
};
const Kind kKinds[] = {{"greedy", {.temperature = 0}},
                       {"temperature", {}},
                       {"top_k_20_top_p", {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}},
                       {"top_p", {.top_p = 0.95f}},
                       {"top_k_5000", {.top_k = 5000}},
                       {"min_p", {.min_p = 0.05f}},
                       {"logprobs_5", {.temperature = 0, .num_logprobs = 5}}};

std::vector<float> make_logits(int64_t rows, bool trained) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, trained ? 2.5f : 1);
  std::vector<float> logits(static_cast<size_t>(rows * kVocabSize));
  for (float& x : logits) x = normal(rng);
  for (int64_t r = 0; trained && r < rows; ++r) {
    for (int i = 0; i < 30; ++i) logits[r * kVocabSize + rng() % kVocabSize] += 12;
  }
  return logits;
}

void sampling(benchmark::State& state, const Kind& kind, bool trained) {
  static CpuBackend cpu;
  const int64_t num_rows = state.range(0);
  std::vector<float> logits = make_logits(num_rows, trained);
  std::vector<SamplingRow> rows(num_rows, kind.row);
  std::vector<SamplingResult> results(num_rows);
  const Tensor tensor(logits.data(), DType::kFloat32, {num_rows, kVocabSize});
  uint64_t position = 0;
  for (auto _ : state) {
    for (SamplingRow& row : rows) row.position = position++;
    cpu.sample(rows, tensor, nullptr, nullptr)->collect(results);
    benchmark::DoNotOptimize(results.data());
  }
  const auto bytes = static_cast<double>(logits.size() * sizeof(float));
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = {bytes / 1e9, rate};
  state.counters["of_read"] = {bytes / read_bandwidth(cpu), rate};
}

const bool registered = [] {
  for (const Kind& kind : kKinds) {
    for (const bool trained : {true, false}) {
      const std::string name =
          std::string("sampling/") + kind.name + (trained ? "/trained" : "/flat");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [&kind, trained](benchmark::State& state) { sampling(state, kind, trained); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime()
          ->Arg(1)
          ->Arg(16);
    }
  }
  return true;
}();

}  // namespace
}  // namespace nanovllm
