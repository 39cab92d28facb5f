// Paged attention on the GPU: how fast decodes read keys and values, as a share of what a plain
// read of device memory reaches (4,650 GB/s on an H200), and how fast prefills compute (visible
// pairs of tokens only). Every case goes around enough layers that its data do not fit the L2
// cache; the launches lie in a CUDA graph, as in a real step.
//
// With --pieces, kernels that add up keys in pieces come in turns with those of the default.
//
//   nanovllm_cuda_attention_bench [part of the cases' names] [--deterministic] [--pieces]
//                                 [--ceiling GB/s]
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/backend/cuda_backend.h"
#include "cuda_timer.h"

namespace nanovllm {
namespace {

constexpr int kBlockSize = 256;
constexpr size_t kEnoughBytes = size_t{400} << 20;  // several times any L2
constexpr int kRepeats = 7;

struct Sequence {
  int seq_len, num_new;
};

struct Case {
  std::string name;
  std::vector<Sequence> sequences;
  int num_heads = 16, num_kv_heads = 8, head_dim = 128;
  int window = 0;
};

using Backends = std::vector<std::unique_ptr<CudaBackend>>;

// Milliseconds of one replay of what `ops` enqueues on each backend in turns, medians of several.
std::vector<double> time_graphs(const Backends& backends,
                                const std::function<void(CudaBackend&)>& ops) {
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const auto& backend : backends) {
    ops(*backend);  // loads the kernels
    backend->synchronize();
    graphs.push_back(backend->capture([&] { ops(*backend); }));
  }
  std::vector<std::vector<double>> times(backends.size());
  for (int round = -1; round < kRepeats; ++round) {
    for (size_t i = 0; i < backends.size(); ++i) {
      CudaBackend& backend = *backends[i];
      const double us = CudaTimer(backend.stream()).time([&] { backend.launch(*graphs[i]); });
      if (round >= 0) times[i].push_back(us / 1e3);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& all : times) {
    std::ranges::sort(all);
    medians.push_back(all[kRepeats / 2]);
  }
  return medians;
}

template <typename T>
std::unique_ptr<Buffer> upload(Backend& backend, const std::vector<T>& values) {
  auto buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer->data(), values.data(), buffer->bytes());
  backend.synchronize();
  return buffer;
}

// Random bfloat16 between -2 and 2, the same few megabytes again and again.
std::unique_ptr<Buffer> random_bfloat16(Backend& backend, size_t count) {
  std::mt19937 random(1);
  std::vector<uint16_t> pattern(std::min<size_t>(count, (size_t{4} << 20) + 77));
  for (uint16_t& x : pattern) {
    const float value = static_cast<float>(random() >> 8) * 0x1p-22f - 2;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    x = static_cast<uint16_t>(bits >> 16);
  }
  auto buffer = backend.allocate(2 * count);
  for (size_t i = 0; i < count; i += pattern.size()) {
    backend.upload(static_cast<uint16_t*>(buffer->data()) + i, pattern.data(),
                   2 * std::min(pattern.size(), count - i));
  }
  backend.synchronize();
  return buffer;
}

class Bench {
 public:
  // The first of the backends is the one that others are compared with.
  Bench(Backends backends, double ceiling)
      : backends_(std::move(backends)), backend_(*backends_.front()), ceiling_(ceiling) {}

  void run(const Case& c) {
    const KvCacheSpec spec = {c.num_kv_heads, c.head_dim, kBlockSize, DType::kBFloat16};
    std::vector<int32_t> positions, slots, query_start_loc = {0}, seq_lens;
    int num_blocks = 0, stride = 0;
    double kv_bytes = 0, pairs = 0;
    ForwardBatch batch;
    for (const Sequence& s : c.sequences) {
      const int blocks = (s.seq_len + kBlockSize - 1) / kBlockSize;
      num_blocks += blocks;
      stride = std::max(stride, blocks);
      const int seen = c.window > 0 ? std::min(s.seq_len, c.window + s.num_new - 1) : s.seq_len;
      kv_bytes += 4.0 * c.num_kv_heads * c.head_dim * seen;
      pairs += s.num_new * (s.seq_len - (s.num_new - 1) / 2.0);
      query_start_loc.push_back(query_start_loc.back() + s.num_new);
      seq_lens.push_back(s.seq_len);
      batch.num_decodes += s.num_new == 1 ? 1 : 0;
      batch.max_query_len = std::max(batch.max_query_len, s.num_new);
      batch.max_seq_len = std::max(batch.max_seq_len, s.seq_len);
    }
    std::vector<int32_t> ids(num_blocks), table;
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
    for (const Sequence& s : c.sequences) {
      const size_t row = table.size();
      for (int b = 0; b * kBlockSize < s.seq_len; ++b) {
        table.push_back(ids.back());
        ids.pop_back();
      }
      table.resize(row + stride, 0);
      for (int i = s.seq_len - s.num_new; i < s.seq_len; ++i) {
        positions.push_back(i);
        slots.push_back(table[row + i / kBlockSize] * kBlockSize + i % kBlockSize);
      }
    }
    const int num_tokens = query_start_loc.back();
    const int width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    const size_t layer_bytes = backend_.kv_block_bytes(spec) * num_blocks;
    const int num_layers = static_cast<int>(std::clamp<size_t>(kEnoughBytes / layer_bytes, 8, 64));
    const auto cache = random_bfloat16(backend_, num_layers * layer_bytes / 2);
    const auto qkv = random_bfloat16(backend_, size_t{1} * num_tokens * width);
    const auto out = backend_.allocate(size_t{2} * num_tokens * c.num_heads * c.head_dim);
    const auto cos_sin =
        upload(backend_, std::vector<float>(size_t{1} * batch.max_seq_len * c.head_dim, 0.7f));
    const auto norm = upload(backend_, std::vector<float>(c.head_dim, 1.f));
    const auto device_positions = upload(backend_, positions),
               device_slots = upload(backend_, slots),
               device_starts = upload(backend_, query_start_loc),
               device_lens = upload(backend_, seq_lens), device_table = upload(backend_, table);
    batch.num_tokens = num_tokens;
    batch.num_seqs = static_cast<int>(c.sequences.size());
    batch.block_table_stride = stride;
    batch.positions = static_cast<int32_t*>(device_positions->data());
    batch.slot_mapping = static_cast<int32_t*>(device_slots->data());
    batch.query_start_loc = static_cast<int32_t*>(device_starts->data());
    batch.seq_lens = static_cast<int32_t*>(device_lens->data());
    batch.block_table = static_cast<int32_t*>(device_table->data());
    const AttentionParams params = {c.num_heads, 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                    c.window, 0};
    RopeParams rope;
    rope.q_norm = rope.k_norm = static_cast<float*>(norm->data());
    rope.norm_eps = 1e-6f;
    rope.cos_sin = Tensor(cos_sin->data(), DType::kFloat32, {batch.max_seq_len, c.head_dim});
    rope.rotary_dim = c.head_dim;
    const Tensor x(qkv->data(), DType::kBFloat16, {num_tokens, width});
    const Tensor y(out->data(), DType::kBFloat16, {num_tokens, c.num_heads * c.head_dim});
    const auto for_each_layer = [&](auto&& op) {
      std::vector<double> ms = time_graphs(backends_, [&](CudaBackend& backend) {
        for (int i = 0; i < num_layers; ++i) {
          op(backend,
             KvCache{spec, static_cast<char*>(cache->data()) + i * layer_bytes, num_blocks});
        }
      });
      for (double& each : ms) each /= num_layers;
      return ms;
    };
    const auto all_ms = for_each_layer([&](CudaBackend& backend, const KvCache& layer) {
      backend.paged_attention(y, x, layer, params, batch);
    });
    const auto store_ms = for_each_layer([&](CudaBackend& backend, const KvCache& layer) {
      backend.qk_norm_rope_store(x, c.num_heads, rope, layer, batch);
    });
    const auto both_ms = for_each_layer([&](CudaBackend& backend, const KvCache& layer) {
      backend.store_and_attend(y, x, rope, layer, params, batch);
    });
    for (size_t i = 0; i < backends_.size(); ++i) {
      const double ms = all_ms[i], speed = kv_bytes / ms / 1e6;
      fmt::print("{:<24} {:>9.2f} us {:>6.0f} GB/s {:>5.1f}%", i == 0 ? c.name : "  in pieces",
                 ms * 1e3, speed, 100 * speed / ceiling_);
      if (batch.max_query_len > 1) {
        fmt::print(" {:>5.0f} TFLOP/s", 4.0 * c.num_heads * c.head_dim * pairs / ms / 1e9);
      }
      fmt::print("  store {:>7.2f} us, both {:>9.2f} us", store_ms[i] * 1e3, both_ms[i] * 1e3);
      if (i > 0) fmt::print("  {:.3f}, both {:.3f}", ms / all_ms[0], both_ms[i] / both_ms[0]);
      fmt::print("\n");
    }
    std::fflush(stdout);
  }

 private:
  const Backends backends_;
  CudaBackend& backend_;
  const double ceiling_;  // GB/s
};

std::vector<Sequence> ragged(int count, int longest, int shortest = 1) {
  std::mt19937 random(3);
  std::vector<Sequence> sequences;
  for (int s = 0; s < count; ++s) {
    sequences.push_back(
        {shortest + static_cast<int>(random() % static_cast<unsigned>(longest - shortest + 1)), 1});
  }
  return sequences;
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int batch : {1, 8, 32, 256}) {
    for (const int context : {128, 1000, 4000}) {
      cases.push_back({fmt::format("decode {} x {}", batch, context),
                       std::vector<Sequence>(batch, {context, 1})});
    }
  }
  cases.push_back({"decode 1 x 500", {{500, 1}}});
  cases.push_back({"decode 256 x 100..1300", ragged(256, 1300, 100)});
  cases.push_back({"decode 256 x 1..2000", ragged(256, 2000)});
  cases.push_back({"decode 32 x 1..8000", ragged(32, 8000)});
  cases.push_back({"decode 1 x 32000", {{32000, 1}}});
  cases.push_back({"decode 256 x 1000 32/8", std::vector<Sequence>(256, {1000, 1}), 32, 8});
  cases.push_back({"decode 256 x 1000 d64", std::vector<Sequence>(256, {1000, 1}), 32, 8, 64});
  cases.push_back({"decode 256 x 1000 d96", std::vector<Sequence>(256, {1000, 1}), 32, 32, 96});
  cases.push_back({"decode 256 x 1000 d256", std::vector<Sequence>(256, {1000, 1}), 8, 4, 256});
  cases.push_back({"decode 256 x 1000 32/2", std::vector<Sequence>(256, {1000, 1}), 32, 2});
  cases.push_back({"decode 256 x 1000 d80", std::vector<Sequence>(256, {1000, 1}), 32, 32, 80});
  cases.push_back({"drafts 1 x 4 of 504", {{504, 4}}});
  cases.push_back({"drafts 32 x 2 of 1002", std::vector<Sequence>(32, {1002, 2})});
  cases.push_back({"drafts 32 x 8 of 1008", std::vector<Sequence>(32, {1008, 8})});
  cases.push_back({"drafts 32 x 8 of 1008 32/8", std::vector<Sequence>(32, {1008, 8}), 32, 8});
  cases.push_back({"drafts 1 x 8 of 32008", {{32008, 8}}});
  cases.push_back({"prefill 1 x 128", {{128, 128}}});
  cases.push_back({"prefill 1 x 512", {{512, 512}}});
  cases.push_back({"prefill 4 x 300", std::vector<Sequence>(4, {300, 300})});
  cases.push_back({"prefill 1 x 4096", {{4096, 4096}}});
  cases.push_back({"prefill 1 x 16384", {{16384, 16384}}});
  cases.push_back({"prefill 16 x 1024", std::vector<Sequence>(16, {1024, 1024})});
  cases.push_back({"prefill 512 of 8704", {{8704, 512}}});
  cases.push_back({"prefill 16 of 8208", {{8208, 16}}});
  cases.push_back({"prefill 4 x 40 of 2040", std::vector<Sequence>(4, {2040, 40})});
  cases.push_back({"prefill 30 x 5 of 1005", std::vector<Sequence>(30, {1005, 5})});
  cases.push_back({"prefill 1 x 16384 32/8", {{16384, 16384}}, 32, 8});
  cases.push_back({"prefill 1 x 4096 d64", {{4096, 4096}}, 16, 8, 64});
  cases.push_back({"prefill 1 x 4096 d256", {{4096, 4096}}, 8, 4, 256});
  return cases;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  nanovllm::CudaOptions options;
  std::string part;
  double ceiling = 4650;
  bool has_pieces = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--deterministic") {
      options.deterministic = true;
    } else if (argument == "--pieces") {
      has_pieces = true;
    } else if (argument == "--ceiling" && i + 1 < argc) {
      ceiling = std::stod(argv[++i]);
    } else {
      part = argument;
    }
  }
  nanovllm::Backends backends;
  backends.push_back(std::make_unique<nanovllm::CudaBackend>(options));
  if (has_pieces) {
    options.attention_in_pieces = true;
    backends.push_back(std::make_unique<nanovllm::CudaBackend>(options));
  }
  nanovllm::Bench bench(std::move(backends), ceiling);
  for (const nanovllm::Case& c : nanovllm::cases()) {
    if (c.name.find(part) != std::string::npos) bench.run(c);
  }
}
