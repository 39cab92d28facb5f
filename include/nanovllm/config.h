// How an engine is set up. Names and defaults are nano-vLLM's where it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace nanovllm {

struct EngineConfig {
  // Most tokens that one step computes, 1 to 2^20. Longer prompts are computed in chunks.
  int max_num_batched_tokens = 16384;
  // While sequences decode, no more of prompts is computed in a step than is expected to take so
  // many seconds with the decodes: a time without a token that people bear. 0 = no bound; -1 = 0.5
  // on a CPU, 0.1 on a GPU. On a CPU what steps take is learned from them, and no token depends on
  // it. On a GPU it is computed from the model's and the device's figures, so that the same steps
  // come with every run.
  double max_step_seconds = 0;
  // Most sequences in one step, 1 to 65,536.
  int max_num_seqs = 512;
  // Most tokens of a prompt and its output together, 2 to 2^24; more than the model was trained for
  // is refused. -1 = what the model was trained for, as far as the KV cache can hold one request of
  // that length, and at most 65,536: EngineInfo::max_model_len tells.
  int max_model_len = -1;
  // CUDA only: the part of the device memory that is free before the model is loaded which weights,
  // workspace and KV cache may take together. Above 0, at most 1. (In vLLM it is a part of all
  // memory.)
  double gpu_memory_utilization = 0.9;
  // Bytes for the KV cache of each rank. Without it, the cache gets what gpu_memory_utilization
  // leaves (CUDA) or 40% of the free memory (CPU), but never more than max_num_seqs sequences of
  // max_model_len tokens can use; nor, on a CPU, more than 8 times the weights plus 512 MiB or, if
  // that is larger, 4 such sequences.
  std::optional<int64_t> kv_cache_memory;
  // Models with recurrent layers: bytes for their states, of each rank. Each sequence that runs
  // takes room for two states and a log, so no more run at once than it is enough for; what is left
  // keeps the states of prompts that later ones begin with. Without it, states have a third of the
  // memory for the KV cache, but never more than max_num_seqs sequences can use, and 16 kept states
  // for each of them. EngineInfo::num_states and num_kept_states tell. No effect on other models.
  std::optional<int64_t> state_cache_memory;
  // Blocks in the KV cache; -1 = as many as the memory above holds. If kv_cache_memory is given
  // too, the smaller of the two counts.
  int num_kvcache_blocks = -1;
  // Tokens in a block of the KV cache: a multiple of 16, at most 4,096.
  int kvcache_block_size = 256;
  // Requests whose prompts begin alike share the KV blocks of that beginning.
  bool enable_prefix_caching = true;
  // "fcfs": first come, first served. "priority": the lowest SamplingParams::priority goes first.
  std::string scheduling_policy = "fcfs";
  // true: never record CUDA graphs.
  bool enforce_eager = false;
  // true: on CUDA the tokens of a request do not depend on which other requests run in the same
  // step. This costs speed. On the CPU it always holds.
  bool deterministic = false;
  // Number of ranks (workers, each with a thread of its own) that split the model's weights, 1 to
  // 8. On CUDA each has a GPU of its own (first_gpu); on the CPU they divide num_threads.
  int tensor_parallel_size = 1;
  // For mixtures of experts: each rank holds some experts whole, not a slice of every expert.
  bool enable_expert_parallel = false;
  // "auto", "cpu" or "cuda"; auto takes a GPU if there is one.
  std::string device = "auto";
  // CUDA only: the number of the first rank's GPU, 0 to 65,536, as CUDA counts those that
  // CUDA_VISIBLE_DEVICES leaves; the next ranks have those behind it. A thread that makes or steps
  // an engine has its first GPU as CUDA's current device from then on.
  int first_gpu = 0;
  // "auto" (the checkpoint's type), "bfloat16" or "float32".
  std::string dtype = "auto";
  // "auto": quantised weights stay in their codes where kernels compute with them. "bfloat16": all
  // are decoded to `dtype` while they are loaded, which takes more memory and is for comparisons.
  std::string weight_layout = "auto";
  // Rounds weights that are not quantised while they are loaded: "int8" or "int4", in groups of 32
  // columns, or "fp8", a scale a row; the head is int8. Embeddings, norms and routers stay. Empty,
  // "none" or the method of a quantised checkpoint = weights are what the checkpoint has.
  std::string quantization;
  // Speculative decoding: what may follow is guessed and verified, several tokens a step, which
  // changes no token. A JSON object with vLLM's keys, the first of them "method": "suffix" copies
  // from what stands earlier in the text or in other outputs with the same cache_salt, "ngram" from
  // the text alone, "draft_model" asks a smaller model. Empty or "null" = off. On a CPU only.
  std::string speculative_config;
  // A request without a seed gets one made from this number and its id.
  int64_t seed = 0;
  // CPU threads, at most 1,024; 0 = as many as affinity and cgroup limits allow.
  int num_threads = 0;
  // Path of a Chrome/Perfetto trace that is written while the engine runs; empty = no trace.
  std::string trace_file;

  // Throws Error(kInvalidArgument) with a sentence that names the first field out of range.
  void validate() const;
};

}  // namespace nanovllm
