// What a loaded engine is and can take: what `nanovllm info` shows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace nanovllm {

// A checkpoint's tensors in one format.
struct WeightFormat {
  std::string name;  // as the file has it: "BF16", "Q4_K", ...
  int64_t num_tensors = 0;
  int64_t bytes = 0;  // in the file
  bool operator==(const WeightFormat&) const = default;
};

// How much an engine takes.
struct EngineLimits {
  int max_num_batched_tokens = 0;  // tokens in one step
  int max_num_seqs = 0;            // sequences in one step
  int max_model_len = 0;           // tokens of a prompt and its output together
  int vocab_size = 0;              // of the model's logits
  int num_kvcache_blocks = 0;
  int kvcache_block_size = 0;     // tokens
  bool takes_priorities = false;  // else all requests have priority 0

  // What there is room for, of a prompt and its output together: the last token is never fed back.
  int max_num_tokens() const {
    const int64_t in_kv_cache = int64_t{num_kvcache_blocks} * kvcache_block_size + 1;
    return static_cast<int>(std::min<int64_t>(max_model_len, in_kv_cache));
  }
  bool operator==(const EngineLimits&) const = default;
};

// Facts about a loaded engine.
struct EngineInfo : EngineLimits {
  std::string architecture;
  std::string device;  // e.g. "cpu (avx512_bf16, 2 threads)"
  std::string dtype;
  int64_t num_parameters = 0;
  int64_t num_active_parameters = 0;         // those that a token meets: not of all experts
  int64_t weight_bytes = 0;                  // in memory, of one rank
  std::vector<WeightFormat> weight_formats;  // in the checkpoint; those with the most bytes first
  std::vector<std::string> layers;           // what the layers are, a line for each kind
  std::vector<std::string> plan;             // how the layers are computed, a line each
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache_bytes = 0;
  std::string
      default_temperature_source;  // the model's file that sets the default one; empty: none does
  double load_seconds = 0;
  bool operator==(const EngineInfo&) const = default;
};

}  // namespace nanovllm
