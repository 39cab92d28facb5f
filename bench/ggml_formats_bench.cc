// How fast blocks of GGUF's formats become float32, on one core and from its caches: whole rows,
// and parts of them that begin inside a block.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/ggml_formats.h"

namespace nanovllm {
namespace {

constexpr int64_t kCols = 4096;

void decode(benchmark::State& state, const GgmlFormat& format, int64_t first) {
  // Every byte the same: scales of 0.0017 and codes that are all alike.
  const std::vector<uint8_t> row(
      static_cast<size_t>(kCols / format.block_elements * format.block_bytes), 0x17);
  std::vector<float> out(static_cast<size_t>(kCols));
  const auto decoder = make_ggml_decoder(format, row.data(), 1, kCols, format.name);
  for (auto _ : state) {
    decoder->decode(0, first, kCols - first, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] = benchmark::Counter(static_cast<double>(kCols - first),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (uint32_t id = 0; id < 64; ++id) {
    const nanovllm::GgmlFormat* format = nanovllm::find_ggml_format(id);
    if (format == nullptr || format->plain) continue;
    for (const int64_t first : {0, 5}) {
      benchmark::RegisterBenchmark(
          (std::string(format->name) + (first == 0 ? "" : "/inside")).c_str(), nanovllm::decode,
          *format, first);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
