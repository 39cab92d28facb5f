// Ops that treat every row alike, in the shape of Qwen3-0.6B: one row as in a decode, 512 as in a
// prefill. GB/s counts what an op reads and writes, each once. Rows lie in caches, as the op before
// leaves them there, so that shares above 1 are no mistake, and activations wait for arithmetic;
// only the embedding's table comes from memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"

namespace nanovllm {
namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 3072;
constexpr size_t kTableBytes = size_t{512} << 20;  // more than any cache holds, a power of two

CpuBackend& cpu() {
  static CpuBackend backend;
  return backend;
}

std::unique_ptr<Buffer> ones(size_t bytes) {
  auto memory = cpu().allocate(bytes);  // untouched pages would all be one page of zeros
  std::fill_n(static_cast<uint32_t*>(memory->data()), bytes / 4, 0x3f803f80u);  // in both dtypes
  return memory;
}

struct Rows {
  Rows(DType dtype, int64_t num_rows, int64_t width)
      : memory(ones(static_cast<size_t>(num_rows * width) * size_of(dtype))),
        tensor(memory->data(), dtype, {num_rows, width}) {}

  std::unique_ptr<Buffer> memory;
  Tensor tensor;
};

void measure(benchmark::State& state, size_t bytes_per_call, const auto& op) {
  for (auto _ : state) op();
  const auto bytes = static_cast<double>(bytes_per_call);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = {bytes / 1e9, rate};
  state.counters["of_read"] = {bytes / read_bandwidth(cpu()), rate};
}

void embedding(benchmark::State& state, DType act) {
  static const std::unique_ptr<Buffer> memory = ones(kTableBytes);
  const auto table_rows = static_cast<int64_t>(kTableBytes / size_of(act)) / kHidden;
  const Tensor table(memory->data(), act, {table_rows, kHidden});
  std::vector<int32_t> ids(static_cast<size_t>(table_rows));  // every row once, far apart
  for (int64_t i = 0; i < table_rows; ++i) ids[i] = static_cast<int32_t>(i * 40503 % table_rows);
  const int64_t num_rows = state.range(0);
  const Rows out(DType::kFloat32, num_rows, kHidden);
  int64_t next = 0;
  measure(state, table.first_rows(num_rows).bytes() + out.tensor.bytes(), [&] {
    cpu().embedding(out.tensor, ids.data() + next, EmbeddingTable(table), 0);
    next = (next + num_rows) % table_rows;
  });
}

void rms_norm(benchmark::State& state, DType act) {
  const Rows x(DType::kFloat32, state.range(0), kHidden), out(act, state.range(0), kHidden);
  const Rows weight(DType::kFloat32, 1, kHidden);
  measure(state, x.tensor.bytes() + weight.tensor.bytes() + out.tensor.bytes(),
          [&] { cpu().rms_norm(out.tensor, x.tensor, weight.tensor.f32(), 1e-6f); });
}

void add_rms_norm(benchmark::State& state, DType act) {
  const Rows x(act, state.range(0), kHidden), out(act, state.range(0), kHidden);
  const Rows residual(DType::kFloat32, state.range(0), kHidden);
  const Rows weight(DType::kFloat32, 1, kHidden);
  const size_t bytes =
      x.tensor.bytes() + 2 * residual.tensor.bytes() + weight.tensor.bytes() + out.tensor.bytes();
  measure(state, bytes, [&] {
    cpu().add_rms_norm(out.tensor, residual.tensor, x.tensor, 1, weight.tensor.f32(), 1e-6f);
  });
}

void act_and_mul(benchmark::State& state, DType act, Activation activation) {
  const Rows gate_up(act, state.range(0), 2 * kIntermediate);
  const Rows out(act, state.range(0), kIntermediate);
  measure(state, gate_up.tensor.bytes() + out.tensor.bytes(),
          [&] { cpu().act_and_mul(out.tensor, gate_up.tensor, activation); });
}

void gather_rows(benchmark::State& state, DType act) {
  const Rows x(act, state.range(0), kHidden), out(act, state.range(0), kHidden);
  std::vector<int32_t> rows(static_cast<size_t>(state.range(0)));
  std::iota(rows.rbegin(), rows.rend(), 0);
  measure(state, x.tensor.bytes() + out.tensor.bytes(),
          [&] { cpu().gather_rows(out.tensor, x.tensor, rows.data()); });
}

const bool rows_registered = [] {
  for (const DType act : {DType::kBFloat16, DType::kFloat32}) {
    const auto add = [act](const char* name, auto op, auto... more) {
      benchmark::RegisterBenchmark((std::string(name) + "/" + to_string(act)).c_str(), op, act,
                                   more...)
          ->ArgName("rows")
          ->Arg(1)
          ->Arg(512)
          ->UseRealTime();
    };
    add("embedding", embedding);
    add("rms_norm", rms_norm);
    add("add_rms_norm", add_rms_norm);
    add("silu_and_mul", act_and_mul, Activation::kSilu);
    add("gelu_and_mul", act_and_mul, Activation::kGelu);
    add("gelu_tanh_and_mul", act_and_mul, Activation::kGeluTanh);
    add("gather_rows", gather_rows);
  }
  return true;
}();

}  // namespace
}  // namespace nanovllm
