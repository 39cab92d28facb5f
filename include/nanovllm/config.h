// How an engine is set up. Names and defaults are nano-vLLM's where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace nanovllm {

struct EngineConfig {
  // Tokens in one step, at most.
  int max_num_batched_tokens = 16384;
  // Sequences in one step, at most.
  int max_num_seqs = 512;
  // Tokens of prompt and output together; lowered to what the model was trained for.
  int max_model_len = 4096;
  // cuda: share of the device memory free at the start that may be used.
  double gpu_memory_utilization = 0.9;
  // Bytes for a rank's KV cache; overrides the shares of memory.
  std::optional<int64_t> kv_cache_memory;
  // Blocks in the KV cache; -1 = as many as the memory allows.
  int num_kvcache_blocks = -1;
  // Tokens in a block; a multiple of 16.
  int kvcache_block_size = 256;
  // Requests with equal prompt beginnings share KV blocks.
  bool enable_prefix_caching = true;
  // "fcfs": first come, first served. "priority": SamplingParams::priority goes first.
  std::string scheduling_policy = "fcfs";
  // No CUDA graphs.
  bool enforce_eager = false;
  // cuda: a request's tokens never depend on its batch mates. On the CPU they never do.
  bool deterministic = false;
  // Ranks that share the model's weights, 1 to 8: a GPU each, or a share of num_threads.
  int tensor_parallel_size = 1;
  // Ranks share a mixture's experts out, instead of each expert's width.
  bool enable_expert_parallel = false;
  // "auto", "cpu" or "cuda"; auto takes a GPU where there is one.
  std::string device = "auto";
  // "auto" (the checkpoint's), "bfloat16" or "float32".
  std::string dtype = "auto";
  // Base of the seeds of requests that bring none.
  uint64_t seed = 0;
  // CPU threads; 0 = as many as affinity and cgroup limits allow.
  int num_threads = 0;
  // Where to write a Chrome/Perfetto trace of the run when the engine ends; empty = nowhere.
  std::string trace_file;

  // Throws Error(kInvalidArgument) with a sentence naming the first field that is out of range.
  void validate() const;
};

}  // namespace nanovllm
