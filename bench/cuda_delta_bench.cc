// The gated delta rule on the GPU, a layer of Qwen3.5's shapes: how fast decodes read states and
// logs, as a share of what a plain read of device memory reaches, and what a chunk of a prompt
// takes. Every case goes around enough layers that its data do not fit the L2 cache; the launches
// lie in a CUDA graph, as in a real step.
//
//   nanovllm_cuda_delta_bench [part of the cases' names] [--ceiling GB/s]
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/backend/cuda_backend.h"
#include "cuda_timer.h"

namespace nanovllm {
namespace {

constexpr int64_t kEnoughBytes = int64_t{400} << 20;  // several times any L2
constexpr int kRepeats = 7;
constexpr int kDim = 128;  // of keys and of values

struct Case {
  std::string name;
  int num_value_heads, num_seqs, num_new;
  // Tokens before the first sequence's new ones.
  int context;
};

// A step, and the bytes of states and logs that it moves in a layer.
struct Step {
  std::vector<int32_t> starts = {0}, lens, slots, state_lens, next, logs;
  double bytes = 0;

  Step(const Case& c, const StateSpec& spec) {
    for (int s = 0; s < c.num_seqs; ++s) {
      // Decodes are anywhere in their chunks.
      const int first = c.context + (c.num_new == 1 ? 37 * s % kStateChunk : 0);
      const int state_len = std::max(0, (first - 1) / kStateChunk * kStateChunk);
      starts.push_back(starts.back() + c.num_new);
      lens.push_back(first + c.num_new);
      slots.push_back(2 * s);
      next.push_back(2 * s + 1);
      state_lens.push_back(state_len);
      logs.push_back(s);
      const bool reads_state = state_len > 0;
      const bool writes_state = (lens.back() - 1) / kStateChunk * kStateChunk > state_len;
      bytes += 4.0 * spec.num_value_heads * kDim * kDim * (reads_state + writes_state);
      bytes += (first - state_len) * kDim * (2.0 * spec.num_key_heads + 4.0 * spec.num_value_heads);
    }
  }
};

template <typename T>
std::unique_ptr<Buffer> upload(Backend& backend, const std::vector<T>& values) {
  auto buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer->data(), values.data(), buffer->bytes());
  backend.synchronize();
  return buffer;
}

// Random bfloat16 between -2 and 2, the same few megabytes again and again; pairs of them are such
// float32.
std::unique_ptr<Buffer> random_bfloat16(Backend& backend, size_t bytes) {
  std::mt19937 random(1);
  std::vector<uint16_t> pattern(std::min<size_t>(bytes / 2, (size_t{4} << 20) + 77));
  for (uint16_t& x : pattern) {
    const float value = static_cast<float>(random() >> 8) * 0x1p-22f - 2;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    x = static_cast<uint16_t>(bits >> 16);
  }
  auto buffer = backend.allocate(bytes);
  for (size_t i = 0; i < bytes; i += 2 * pattern.size()) {
    backend.upload(static_cast<char*>(buffer->data()) + i, pattern.data(),
                   std::min(2 * pattern.size(), bytes - i));
  }
  backend.synchronize();
  return buffer;
}

class Bench {
 public:
  explicit Bench(double ceiling) : ceiling_(ceiling) {}

  void run(const Case& c) {
    const StateSpec spec = {.num_key_heads = 16,
                            .num_value_heads = c.num_value_heads,
                            .key_dim = kDim,
                            .value_dim = kDim,
                            .conv_width = 4,
                            .dtype = DType::kBFloat16};
    const Step step(c, spec);
    const StateBytes bytes = backend_.state_bytes(spec);
    const int64_t layer_bytes = (2 * bytes.slot + bytes.log) * c.num_seqs;
    const auto num_layers =
        static_cast<int>(std::clamp<int64_t>(kEnoughBytes / layer_bytes, 1, 32));
    const auto memory = random_bfloat16(backend_, static_cast<size_t>(num_layers * layer_bytes));
    const int num_tokens = step.starts.back();
    const int64_t values = int64_t{c.num_value_heads} * kDim;
    const int64_t width = spec.num_channels() + values + 2 * c.num_value_heads;
    const auto in = random_bfloat16(backend_, static_cast<size_t>(2 * num_tokens * width));
    const auto out = backend_.allocate(static_cast<size_t>(2 * num_tokens * values));
    const auto weights = upload(backend_, std::vector<float>(4 * spec.num_channels(), 0.3f));
    const auto decay = upload(backend_, std::vector<float>(c.num_value_heads, -0.1f));
    const auto ones = upload(backend_, std::vector<float>(kDim, 1.0f));
    const GatedDeltaParams params = {.conv_weight = floats(weights),
                                     .decay = floats(decay),
                                     .dt_bias = floats(decay),
                                     .out_norm = floats(ones),
                                     .eps = 1e-6f};
    std::vector<std::unique_ptr<Buffer>> arrays;
    const auto ints = [&](const std::vector<int32_t>& numbers) {
      arrays.push_back(upload(backend_, numbers));
      return static_cast<const int32_t*>(arrays.back()->data());
    };
    const ForwardBatch batch = {.num_tokens = num_tokens,
                                .num_seqs = c.num_seqs,
                                .max_query_len = c.num_new,
                                .query_start_loc = ints(step.starts),
                                .seq_lens = ints(step.lens),
                                .state_slot = ints(step.slots),
                                .state_len = ints(step.state_lens),
                                .next_slot = ints(step.next),
                                .log_slot = ints(step.logs)};
    const Tensor x(in->data(), DType::kBFloat16, {num_tokens, width});
    const Tensor y(out->data(), DType::kBFloat16, {num_tokens, values});
    const auto ops = [&] {
      for (int i = 0; i < num_layers; ++i) {
        char* const slots = static_cast<char*>(memory->data()) + i * layer_bytes;
        backend_.gated_delta(y, x, params, {spec, slots, slots + 2 * bytes.slot * c.num_seqs},
                             batch);
      }
    };
    ops();  // loads the kernels
    backend_.synchronize();
    const std::unique_ptr<Graph> graph = backend_.capture(ops);
    const double us = CudaTimer(backend_.stream()).median(kRepeats, [&] {
      backend_.launch(*graph);
    }) / num_layers;
    fmt::print("{:<28} {:>9.2f} us a layer", c.name, us);
    if (c.num_new == 1) {
      const double speed = step.bytes / us / 1e3;
      fmt::print(" {:>6.0f} GB/s ({:.0f}%)", speed, 100 * speed / ceiling_);
    } else {
      fmt::print(" {:>6.2f} us a chunk", us * kStateChunk / c.num_new);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  static const float* floats(const std::unique_ptr<Buffer>& buffer) {
    return static_cast<const float*>(buffer->data());
  }

  CudaBackend backend_;
  const double ceiling_;  // GB/s
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const auto& [model, heads] : {std::pair("0.8B", 16), std::pair("9B", 32)}) {
    for (const int batch : {1, 8, 32, 256}) {
      cases.push_back({fmt::format("decode {}, {}", batch, model), heads, batch, 1, 992});
    }
    cases.push_back({fmt::format("decode 1, fold, {}", model), heads, 1, 1, 1024});
    cases.push_back({fmt::format("verify 32 x 5, {}", model), heads, 32, 5, 992});
    cases.push_back({fmt::format("prefill 1 x 8192, {}", model), heads, 1, 8192, 0});
    cases.push_back({fmt::format("prefill 16 x 1000, {}", model), heads, 16, 1000, 0});
  }
  return cases;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  std::string part;
  double ceiling = 4650;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--ceiling" && i + 1 < argc) {
      ceiling = std::stod(argv[++i]);
    } else {
      part = argument;
    }
  }
  nanovllm::Bench bench(ceiling);
  for (const nanovllm::Case& c : nanovllm::cases()) {
    if (c.name.find(part) != std::string::npos) bench.run(c);
  }
}
