// Sampling on the CPU; sampling_cases.h says from what.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"
#include "sampling_cases.h"

namespace nanovllm {
namespace {

void sampling(benchmark::State& state, const SamplingKind& kind, bool trained) {
  static CpuBackend cpu;
  const int64_t num_rows = state.range(0);
  std::vector<float> logits = sampling_logits(num_rows, trained);
  const std::vector<int32_t> output_ids = sampling_output_ids();
  std::vector<SamplingRow> rows = sampling_rows(kind, num_rows, output_ids);
  std::vector<SamplingResult> results(num_rows);
  const Tensor tensor(logits.data(), DType::kFloat32, {num_rows, kSampledVocabSize});
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

const bool sampling_registered = [] {
  for (const SamplingKind& kind : kSamplingKinds) {
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
