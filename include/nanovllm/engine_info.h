// What `nanovllm info` shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nanovllm {

// A checkpoint's tensors in one format.
struct WeightFormat {
  std::string name;  // as the file has it: "BF16", "Q4_K", ...
  int64_t num_tensors = 0;
  int64_t bytes = 0;  // in the file
};

// Facts about a loaded engine.
struct EngineInfo {
  std::string architecture;
  std::string device;  // e.g. "cpu (avx512_bf16, 2 threads)"
  std::string dtype;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;                  // in memory, of one rank
  std::vector<WeightFormat> weight_formats;  // in the checkpoint; those with the most bytes first
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache_bytes = 0;
  int num_kvcache_blocks = 0;
  int kvcache_block_size = 0;
  int max_model_len = 0;
  int vocab_size = 0;
  std::string temperature_source;  // the model's file that sets the default one; empty: none does
  double load_seconds = 0;
};

}  // namespace nanovllm
