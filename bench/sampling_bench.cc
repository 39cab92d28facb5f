// Sampling on the CPU; sampling_cases.h says from what.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"
#include "sampling_cases.h"

namespace nanovllm {
namespace {

void measure(benchmark::State& state, std::vector<SamplingRow> rows, bool trained) {
  static CpuBackend cpu;
  const int64_t num_rows = state.range(0);
  std::vector<float> logits = sampling_logits(num_rows, trained);
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

void sampling(benchmark::State& state, const SamplingKind& kind, bool trained) {
  const std::vector<int32_t> output_ids = sampling_output_ids();
  measure(state, sampling_rows(kind, state.range(0), output_ids), trained);
}

// The logits stay masked from the first round on.
void masked_sampling(benchmark::State& state, const MaskedSamplingKind& kind, int num_logprobs) {
  const auto masks = sampling_masks(kind.share_allowed, state.range(0));
  std::vector<SamplingRow> rows = masked_sampling_rows(kind, masks);
  for (SamplingRow& row : rows) row.num_logprobs = num_logprobs;
  measure(state, std::move(rows), true);
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
  for (const MaskedSamplingKind& kind : kMaskedSamplingKinds) {
    for (const int num_logprobs : {-1, 5}) {
      const std::string name =
          std::string("sampling/") + kind.name + (num_logprobs < 0 ? "" : "_5_logprobs");
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&kind, num_logprobs](benchmark::State& state) {
                                     masked_sampling(state, kind, num_logprobs);
                                   })
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
