#include "engine/config_table.h"

namespace nanovllm {

std::span<const ConfigField> config_table() {
  using C = EngineConfig;
  // clang-format off
  static constexpr ConfigField kTable[] = {
      {"device", &C::device, "auto, cpu or, where the build has it, cuda"},
      {"dtype", &C::dtype, "auto (the checkpoint's), bfloat16 or float32"},
      {"weight_layout", &C::weight_layout,
       "auto (quantised weights stay so where kernels take them) or bfloat16 (all are decoded while they "
       "are loaded)"},
      {"quantization", &C::quantization,
       "rounds the weights of a checkpoint that is not quantised: int8, int4 or fp8; none = not; of one "
       "that is quantised, its own method, such as awq, may be named and changes nothing"},
      {"num_threads", &C::num_threads,
       "CPU threads; 0 = as many as affinity and cgroup limits allow"},
      {"max_model_len", &C::max_model_len,
       "longest prompt plus output, in tokens, at most the model's own; -1 = that, as far as the KV "
       "cache holds it, and at most 65536"},
      {"max_num_seqs", &C::max_num_seqs, "sequences in one step, at most"},
      {"max_num_batched_tokens", &C::max_num_batched_tokens,
       "tokens in one step, at most (longer prompts are computed in chunks)"},
      {"max_step_seconds", &C::max_step_seconds,
       "while sequences decode, a step takes no more of prompts than is expected to take so long; "
       "0 = as much as fits, -1 = 0.5 on a CPU, 0.1 on a GPU"},
      {"kvcache_block_size", &C::kvcache_block_size, "tokens in a block of the KV cache"},
      {"num_kvcache_blocks", &C::num_kvcache_blocks,
       "blocks in the KV cache; -1 = as many as memory allows"},
      {"kv_cache_memory", &C::kv_cache_memory,
       "bytes for the KV cache; overrides the share of memory"},
      {"state_cache_memory", &C::state_cache_memory,
       "bytes for what recurrent layers keep, of the sequences that run at once and of prompts that "
       "later ones begin with; by default a third of the KV cache's memory"},
      {"gpu_memory_utilization", &C::gpu_memory_utilization,
       "share of the memory free at start that may be used", true},
      {"enable_prefix_caching", &C::enable_prefix_caching,
       "reuse the KV of equal prompt beginnings"},
      {"scheduling_policy", &C::scheduling_policy,
       "fcfs (first come, first served) or priority (requests' own, lower first)"},
      {"first_gpu", &C::first_gpu,
       "number of the first rank's GPU, of those that CUDA_VISIBLE_DEVICES leaves", true},
      {"enforce_eager", &C::enforce_eager, "no CUDA graphs", true},
      {"deterministic", &C::deterministic,
       "tokens never depend on batch mates (always so on the CPU)", true},
      {"tensor_parallel_size", &C::tensor_parallel_size,
       "ranks that share the weights, 1 to 8: a GPU each, or a share of the CPU threads"},
      {"enable_expert_parallel", &C::enable_expert_parallel,
       "ranks share the experts of a mixture out, instead of slicing each"},
      {"speculative_config", &C::speculative_config,
       "guess tokens and verify several in a step, which changes no token: JSON with vLLM's keys, such "
       "as {\"method\": \"suffix\"}; the methods are suffix, ngram and draft_model"},
      {"seed", &C::seed, "base of the seeds of requests that bring none"},
      {"trace_file", &C::trace_file, "write a Chrome/Perfetto trace of the run to this file"},
  };
  // clang-format on
  return kTable;
}

}  // namespace nanovllm
