// Attention over the paged cache, and the store into it, in the shape of Qwen3-0.6B: 16 query and 8
// KV heads of 128. Decodes report how fast keys and values are read, prefills how fast products are
// computed (visible keys only), both beside the machine's ceiling.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
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
  Workload(int num_seqs, int context, int num_new, int num_layers)
      : num_seqs_(num_seqs), num_new_(num_new), layers_(num_layers) {
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
    spec_ = {kKvHeads, kDim, kBlock, DType::kBFloat16};
    num_blocks_ = num_seqs * blocks;
    const size_t bytes = backend_.kv_block_bytes(spec_) * num_blocks_;
    for (auto& layer : layers_) {
      layer = backend_.allocate(bytes);
      auto* words = static_cast<uint32_t*>(layer->data());
      for (size_t i = 0; i < bytes / 4; ++i)  // numbers around 1, two bfloat16 each
        words[i] = 0x3f003f00u + static_cast<uint32_t>(i * 2654435761u >> 12 & 0x807f807fu);
    }
    qkv_ = backend_.allocate(size_t{2} * tokens * kWidth);
    auto* q = static_cast<BFloat16*>(qkv_->data());
    for (int64_t i = 0; i < int64_t{tokens} * kWidth; ++i)
      q[i] = to_bfloat16(static_cast<float>(i * 37 % 101) / 50 - 1);
    out_ = backend_.allocate(size_t{2} * tokens * kHeads * kDim);
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
    backend_.paged_attention({out_->data(), DType::kBFloat16, {tokens, kHeads * kDim}},
                             {qkv_->data(), DType::kBFloat16, {tokens, kWidth}}, cache(layer),
                             params, batch_);
  }

  void store(int layer) {
    const int64_t tokens = batch_.num_tokens;
    RopeParams rope;
    rope.q_norm = rope.k_norm = cos_sin_.data();
    rope.norm_eps = 1e-6f;
    rope.cos_sin = {
        cos_sin_.data(), DType::kFloat32, {static_cast<int64_t>(cos_sin_.size()) / kDim, kDim}};
    rope.rotary_dim = kDim;
    backend_.qk_norm_rope_store({qkv_->data(), DType::kBFloat16, {tokens, kWidth}}, kHeads, rope,
                                cache(layer), batch_);
  }

  int num_layers() const { return static_cast<int>(layers_.size()); }
  CpuBackend& backend() { return backend_; }

 private:
  KvCache cache(int layer) const { return {spec_, layers_[layer]->data(), num_blocks_}; }

  CpuBackend backend_;
  int num_seqs_, num_new_;
  KvCacheSpec spec_;
  int64_t num_blocks_ = 0;
  std::vector<std::unique_ptr<Buffer>> layers_;
  std::unique_ptr<Buffer> qkv_, out_;
  std::vector<int32_t> positions_, slots_, query_start_loc_, seq_lens_, table_;
  std::vector<float> cos_sin_;
  ForwardBatch batch_;
};

void decode(benchmark::State& state) {
  const int seqs = static_cast<int>(state.range(0)), context = static_cast<int>(state.range(1));
  const int64_t bytes_per_layer = int64_t{2} * 2 * seqs * context * kKvHeads * kDim;
  // More than any cache holds, as between two layers of a real step.
  const int layers = static_cast<int>(std::max<int64_t>(1, (int64_t{400} << 20) / bytes_per_layer));
  Workload workload(seqs, context, 1, layers);
  const double ceiling = read_bandwidth(workload.backend());
  int layer = 0;
  for (auto _ : state) {
    workload.attend(layer);
    layer = (layer + 1) % layers;
  }
  const auto bytes = static_cast<double>(bytes_per_layer) * static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(bytes / 1e9, benchmark::Counter::kIsRate);
  state.counters["ceiling_GB/s"] = ceiling / 1e9;
}
BENCHMARK(decode)
    ->ArgNames({"seqs", "context"})
    ->Args({16, 512})
    ->Args({16, 128})
    ->Args({1, 1024})
    ->Args({1, 8192})
    ->Args({64, 300})
    ->UseRealTime();

void prefill(benchmark::State& state) {
  const int context = static_cast<int>(state.range(0)), num_new = static_cast<int>(state.range(1));
  Workload workload(1, context, num_new, 1);
  const double ceiling = peak_flops(workload.backend(), DType::kBFloat16);
  for (auto _ : state) workload.attend(0);
  double visible = 0;
  for (int i = 0; i < num_new; ++i) visible += context - i;
  const double flops = 4.0 * kHeads * kDim * visible * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, benchmark::Counter::kIsRate);
  state.counters["ceiling_GFLOP/s"] = ceiling / 1e9;
}
BENCHMARK(prefill)
    ->ArgNames({"context", "new"})
    ->Args({512, 512})
    ->Args({2048, 2048})
    ->Args({2048, 64})
    ->Args({8192, 512})
    ->UseRealTime();

void norm_rope_store(benchmark::State& state) {
  const int seqs = static_cast<int>(state.range(0)), num_new = static_cast<int>(state.range(1));
  Workload workload(seqs, num_new == 1 ? 300 : num_new, num_new, 8);
  int layer = 0;
  for (auto _ : state) {
    workload.store(layer);
    layer = (layer + 1) % workload.num_layers();
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(seqs) * num_new * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(norm_rope_store)
    ->ArgNames({"seqs", "new"})
    ->Args({1, 1})
    ->Args({16, 1})
    ->Args({1, 512})
    ->Args({1, 2048})
    ->UseRealTime();

}  // namespace
}  // namespace nanovllm
