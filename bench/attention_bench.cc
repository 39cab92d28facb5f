// Attention over the paged cache, and the store into it, in the shape of Qwen3-0.6B: 16 query and 8
// KV heads of 128. Decodes report how fast keys and values are read, prefills how fast products are
// computed (visible keys only), stores how fast rows are read and written, all beside the machine's
// ceiling.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"

namespace nanovllm {
namespace {

constexpr int kHeads = 16, kKvHeads = 8, kDim = 128, kBlock = 256;
constexpr int kWidth = (kHeads + 2 * kKvHeads) * kDim;

// Sequences of equal context that each compute `num_new` tokens, in `num_layers` caches.
class Workload {
 public:
  Workload(DType dtype, int num_seqs, int context, int num_new, int num_layers)
      : layers_(num_layers) {
    const int blocks = (context + kBlock - 1) / kBlock;
    const int tokens = num_seqs * num_new;
    for (int s = 0; s < num_seqs; ++s) {
      query_start_loc_.push_back(s * num_new);
      seq_lens_.push_back(context);
      for (int b = 0; b < blocks; ++b) table_.push_back(s * blocks + b);
      for (int i = 0; i < num_new; ++i) {
        const int position = context - num_new + i;
        positions_.push_back(position);
        slots_.push_back((s * blocks + position / kBlock) * kBlock + position % kBlock);
      }
    }
    query_start_loc_.push_back(tokens);
    spec_ = {kKvHeads, kDim, kBlock, dtype};
    num_blocks_ = num_seqs * blocks;
    const size_t bytes = backend_.kv_block_bytes(spec_) * num_blocks_;
    for (auto& layer : layers_) {
      layer = backend_.allocate(bytes);
      auto* words = static_cast<uint32_t*>(layer->data());
      for (size_t i = 0; i < bytes / 4; ++i) {  // numbers around 1, two bfloat16 or a float each
        words[i] = 0x3f003f00u + static_cast<uint32_t>(i * 2654435761u >> 12 & 0x807f807fu);
      }
    }
    qkv_ = backend_.allocate(size_of(dtype) * tokens * kWidth);
    const Tensor qkv(qkv_->data(), dtype, {tokens, kWidth});
    for (int64_t i = 0; i < qkv.num_elements(); ++i) {
      const float value = static_cast<float>(i * 37 % 101) / 50 - 1;
      if (dtype == DType::kFloat32) {
        qkv.f32()[i] = value;
      } else {
        qkv.bf16()[i] = to_bfloat16(value);
      }
    }
    out_ = backend_.allocate(size_of(dtype) * tokens * kHeads * kDim);
    cos_sin_.assign(static_cast<size_t>(context) * kDim, 0.5f);
    batch_.num_tokens = tokens;
    batch_.num_seqs = num_seqs;
    batch_.num_decodes = num_new == 1 ? num_seqs : 0;
    batch_.max_query_len = num_new;
    batch_.max_seq_len = context;
    batch_.block_table_stride = blocks;
    batch_.positions = positions_.data();
    batch_.slot_mapping = slots_.data();
    batch_.query_start_loc = query_start_loc_.data();
    batch_.seq_lens = seq_lens_.data();
    batch_.block_table = table_.data();
  }

  void attend(int layer) {
    const int64_t tokens = batch_.num_tokens;
    AttentionParams params;
    params.num_heads = kHeads;
    params.scale = 1 / std::sqrt(static_cast<float>(kDim));
    backend_.paged_attention({out_->data(), spec_.dtype, {tokens, kHeads * kDim}},
                             {qkv_->data(), spec_.dtype, {tokens, kWidth}}, cache(layer), params,
                             batch_);
  }

  void store(int layer) {
    const int64_t tokens = batch_.num_tokens;
    RopeParams rope;
    rope.q_norm = rope.k_norm = cos_sin_.data();
    rope.norm_eps = 1e-6f;
    rope.cos_sin = {
        cos_sin_.data(), DType::kFloat32, {static_cast<int64_t>(cos_sin_.size()) / kDim, kDim}};
    rope.rotary_dim = kDim;
    backend_.qk_norm_rope_store({qkv_->data(), spec_.dtype, {tokens, kWidth}}, kHeads, rope,
                                cache(layer), batch_);
  }

  int num_layers() const { return static_cast<int>(layers_.size()); }
  CpuBackend& backend() { return backend_; }

 private:
  KvCache cache(int layer) const { return {spec_, layers_[layer]->data(), num_blocks_}; }

  CpuBackend backend_;
  KvCacheSpec spec_;
  int64_t num_blocks_ = 0;
  std::vector<std::unique_ptr<Buffer>> layers_;
  std::unique_ptr<Buffer> qkv_, out_;
  std::vector<int32_t> positions_, slots_, query_start_loc_, seq_lens_, table_;
  std::vector<float> cos_sin_;
  ForwardBatch batch_;
};

constexpr auto kRate = benchmark::Counter::kIsIterationInvariantRate;

void decode(benchmark::State& state, DType dtype) {
  const int seqs = static_cast<int>(state.range(0)), context = static_cast<int>(state.range(1));
  const int64_t bytes = static_cast<int64_t>(2 * size_of(dtype)) * seqs * context * kKvHeads * kDim;
  // More than any cache holds, as between two layers of a real step.
  const int layers = static_cast<int>(std::max<int64_t>(1, (int64_t{400} << 20) / bytes));
  Workload workload(dtype, seqs, context, 1, layers);
  const double ceiling = read_bandwidth(workload.backend());
  int layer = 0;
  for (auto _ : state) {
    workload.attend(layer);
    layer = (layer + 1) % layers;
  }
  state.counters["GB/s"] = {static_cast<double>(bytes) / 1e9, kRate};
  state.counters["of_read"] = {static_cast<double>(bytes) / ceiling, kRate};
}

void prefill(benchmark::State& state, DType dtype) {
  const int context = static_cast<int>(state.range(0)), num_new = static_cast<int>(state.range(1));
  Workload workload(dtype, 1, context, num_new, 1);
  const double ceiling = peak_flops(workload.backend(), dtype);
  for (auto _ : state) workload.attend(0);
  double visible = 0;
  for (int i = 0; i < num_new; ++i) visible += context - i;
  const double flops = 4.0 * kHeads * kDim * visible;
  state.counters["GFLOP/s"] = {flops / 1e9, kRate};
  if (ceiling > 0) state.counters["of_peak"] = {flops / ceiling, kRate};
}

// Rows come from caches where they fit, as in a step: then a share may be above 1.
void norm_rope_store(benchmark::State& state, DType dtype) {
  const int seqs = static_cast<int>(state.range(0)), num_new = static_cast<int>(state.range(1));
  Workload workload(dtype, seqs, num_new == 1 ? 300 : num_new, num_new, 8);
  const double ceiling = read_bandwidth(workload.backend());
  int layer = 0;
  for (auto _ : state) {
    workload.store(layer);
    layer = (layer + 1) % workload.num_layers();
  }
  const double tokens = static_cast<double>(seqs) * num_new;
  // A row is read, and written back or into the cache; cosines and sines are float32.
  const double bytes = tokens * static_cast<double>(2 * size_of(dtype) * kWidth + 4 * kDim);
  state.counters["tokens/s"] = {tokens, kRate};
  state.counters["GB/s"] = {bytes / 1e9, kRate};
  state.counters["of_read"] = {bytes / ceiling, kRate};
}

const bool attention_registered = [] {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const auto add = [dtype](const char* name, auto op, const char* first, const char* second,
                             const std::vector<std::vector<int64_t>>& cases) {
      auto* bench = benchmark::RegisterBenchmark(
          (std::string(name) + "/" + to_string(dtype)).c_str(), op, dtype);
      bench->ArgNames({first, second})->UseRealTime();
      for (const std::vector<int64_t>& args : cases) bench->Args(args);
    };
    add("decode", decode, "seqs", "context",
        {{16, 512}, {16, 128}, {1, 1024}, {1, 8192}, {64, 300}});
    add("prefill", prefill, "context", "new", {{512, 512}, {2048, 2048}, {2048, 64}, {8192, 512}});
    add("norm_rope_store", norm_rope_store, "seqs", "new", {{1, 1}, {16, 1}, {1, 512}, {1, 2048}});
  }
  return true;
}();

}  // namespace
}  // namespace nanovllm
