// Matrix products of Qwen3-0.6B, cold: each call takes another copy of the weight, so that none is
// found in a cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"

namespace nanovllm {
namespace {

struct Shape {
  const char* name;
  int64_t k, n;
  DType out;
};
constexpr Shape kShapes[] = {{"qkv", 1024, 4096, DType::kBFloat16},
                             {"o", 2048, 1024, DType::kBFloat16},
                             {"gate_up", 1024, 6144, DType::kBFloat16},
                             {"down", 3072, 1024, DType::kBFloat16},
                             {"lm_head", 1024, 151936, DType::kFloat32}};

constexpr int64_t kColdBytes = int64_t{512} << 20;

// Of a normal distribution, as a model's weights nearly are.
std::vector<uint16_t> random_bf16(int64_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> draws(1 << 16);
  for (uint16_t& draw : draws) draw = to_bfloat16(normal(rng)).bits;
  std::vector<uint16_t> values(static_cast<size_t>(n));
  for (uint16_t& value : values) value = draws[rng() % draws.size()];
  return values;
}

void linear(benchmark::State& state, Shape shape, DType dtype) {
  const int64_t m = state.range(0);
  static CpuBackend cpu;
  const std::vector<uint16_t> source = random_bf16(shape.n * shape.k);
  const HostMatrix matrix{source.data(), DType::kBFloat16, shape.n, shape.k, shape.k};
  std::vector<std::unique_ptr<LinearWeight>> weights;
  for (int64_t total = 0; weights.size() < 2 || total < kColdBytes; total += weights[0]->bytes) {
    weights.push_back(cpu.make_linear({&matrix, 1}, nullptr, dtype));
  }
  const auto weight_bytes = static_cast<double>(weights[0]->bytes);  // as they lie in memory
  const DType act = dtype;
  const DType out_dtype = act == DType::kFloat32 ? act : shape.out;
  const auto x_buffer = cpu.allocate(static_cast<size_t>(m * shape.k) * size_of(act));
  const auto out_buffer = cpu.allocate(static_cast<size_t>(m * shape.n) * size_of(out_dtype));
  const Tensor x(x_buffer->data(), act, {m, shape.k});
  const Tensor out(out_buffer->data(), out_dtype, {m, shape.n});
  for (int64_t i = 0; i < m * shape.k; ++i) {
    const BFloat16 value{source[static_cast<size_t>(i % (shape.n * shape.k))]};
    if (act == DType::kFloat32) {
      x.f32()[i] = to_float(value);
    } else {
      x.bf16()[i] = value;
    }
  }
  static const double peaks[] = {peak_flops(cpu, DType::kBFloat16),
                                 peak_flops(cpu, DType::kFloat32)};
  const double peak = peaks[dtype == DType::kFloat32];
  const double bandwidth = read_bandwidth(cpu);
  size_t next = 0;
  for (auto _ : state) {
    cpu.linear(out, x, *weights[next]);
    next = (next + 1) % weights.size();
  }
  const double flops = 2.0 * static_cast<double>(m * shape.n * shape.k);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = {weight_bytes / 1e9, rate};
  state.counters["of_read"] = {weight_bytes / bandwidth, rate};
  state.counters["GFLOP/s"] = {flops / 1e9, rate};
  if (peak > 0) state.counters["of_peak"] = {flops / peak, rate};
}

const bool linear_registered = [] {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const Shape& shape : kShapes) {
      auto* bench = benchmark::RegisterBenchmark(
          (std::string("linear/") + to_string(dtype) + "/" + shape.name).c_str(),
          [=](benchmark::State& state) { linear(state, shape, dtype); });
      bench->Unit(benchmark::kMicrosecond)->UseRealTime();
      for (const int64_t m : {1, 2, 4, 8, 12, 16, 24, 32, 64, 512, 2048}) {
        if (m * shape.n < int64_t{1} << 28) bench->Arg(m);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nanovllm
