// How an engine is set up. Names and defaults are nano-vLLM's where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace nanovllm {

struct EngineConfig {
  int max_num_batched_tokens = 16384;  // tokens in one step, at most
  int max_num_seqs = 512;              // sequences in one step, at most
  int max_model_len = 4096;  // prompt + output tokens; lowered to what the model was trained for
  double gpu_memory_utilization =
      0.9;  // share of the device memory free at start that may be used (cuda)
  std::optional<int64_t>
      kv_cache_memory;                // bytes for a rank's KV cache; overrides the shares of memory
  int num_kvcache_blocks = -1;        // blocks in the KV cache; -1 = as many as the memory allows
  int kvcache_block_size = 256;       // tokens in a block; a multiple of 16
  bool enable_prefix_caching = true;  // requests with equal prompt beginnings share KV blocks
  std::string scheduling_policy =
      "fcfs";  // fcfs (first come, first served) | priority (SamplingParams::priority goes first)
  bool enforce_eager = false;  // no CUDA graphs
  bool deterministic =
      false;  // cuda: a request's tokens never depend on its batch mates (always so on cpu)
  int tensor_parallel_size =
      1;  // ranks that share the model's weights, 1 to 8: a GPU each, or a share of num_threads
  std::string device = "auto";  // auto | cpu | cuda
  std::string dtype = "auto";   // auto (the checkpoint's) | bfloat16 | float32
  uint64_t seed = 0;            // base of the seeds of requests that bring none
  int num_threads = 0;          // cpu threads; 0 = as many as affinity and cgroup limits allow
  std::string
      trace_file;  // Chrome/Perfetto trace of the run, written when the engine ends; empty = none

  // Throws Error(kInvalidArgument) with a sentence naming the first field that is out of range.
  void validate() const;
};

}  // namespace nanovllm
