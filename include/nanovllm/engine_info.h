// What a loaded engine is and what it accepts: `nanovllm info` prints it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nanovllm {

// A checkpoint's tensors in one format.
struct WeightFormat {
  // As the file calls it: "BF16", "Q4_K", ...
  std::string name;
  int64_t num_tensors = 0;
  // In the file.
  int64_t bytes = 0;
  bool operator==(const WeightFormat&) const = default;
};

// Weights in memory that lie alike.
struct LayoutOfWeights {
  // "plain", "12-bit codes", "group", "byte" or "super"
  std::string name;
  int64_t num_weights = 0;
  int64_t bytes = 0;
  // Quantised matrices, or ranks' shares of them, that have numbers here, for there is no kernel
  // for their codes.
  int64_t num_decoded = 0;
  bool operator==(const LayoutOfWeights&) const = default;
};

// Blocks of the KV cache that a sequence of num_tokens tokens must have at a time to be computed.
// `windows`: of each group of layers, which has a block table of its own, how many tokens the
// layers see, the newest included; 0 = all. A group with a window holds the blocks that the next
// token sees and the one that it goes to; a step of more tokens takes more where there are more.
inline int64_t kv_blocks_for(int64_t num_tokens, std::span<const int> windows, int block_size) {
  const int64_t of_text = (num_tokens + block_size - 1) / block_size;
  int64_t sum = 0;
  for (const int window : windows) {
    const int64_t seen = (int64_t{window} + block_size - 1) / block_size + 1;
    sum += window > 0 ? std::min(of_text, seen) : of_text;
  }
  return sum;
}
// The largest number of tokens, up to `most`, for which num_blocks are enough.
inline int64_t kv_tokens_in(int64_t num_blocks, std::span<const int> windows, int block_size,
                            int64_t most) {
  int64_t enough = 0, too_many = most + 1;
  while (too_many - enough > 1) {
    const int64_t middle = enough + (too_many - enough) / 2;
    const bool fits = kv_blocks_for(middle, windows, block_size) <= num_blocks;
    (fits ? enough : too_many) = middle;
  }
  return enough;
}

// What an engine accepts at most.
struct EngineLimits {
  // Tokens in one step.
  int max_num_batched_tokens = 0;
  // Sequences in one step.
  int max_num_seqs = 0;
  // Tokens of a prompt and its output together.
  int max_model_len = 0;
  // Of the model's logits.
  int vocab_size = 0;
  int num_kvcache_blocks = 0;
  // Tokens.
  int kvcache_block_size = 0;
  // See kv_blocks_for. Each block belongs to one group at a time.
  std::vector<int> kv_windows = {0};
  // false: requests with another priority than 0 are refused.
  bool takes_priorities = false;

  // The longest prompt and output together. The last token needs no place in the KV cache, because
  // it is never fed back: hence + 1.
  int max_num_tokens() const {
    if (num_kvcache_blocks == 0) return std::min(max_model_len, 1);
    return static_cast<int>(kv_tokens_in(num_kvcache_blocks, kv_windows, kvcache_block_size,
                                         int64_t{max_model_len} - 1)) +
           1;
  }
  int64_t blocks_for(int64_t num_tokens) const {
    return kv_blocks_for(num_tokens, kv_windows, kvcache_block_size);
  }
  // What all groups together hold of texts whose every block is kept.
  int64_t num_kvcache_tokens() const {
    return num_kvcache_blocks / std::ssize(kv_windows) * kvcache_block_size;
  }
  bool operator==(const EngineLimits&) const = default;
};

// Facts about a loaded engine. Bytes in memory are those of all ranks together.
struct EngineInfo : EngineLimits {
  // As config.json calls it: "Qwen3ForCausalLM".
  std::string architecture;
  // For people: "cpu (avx512_bf16, 2 threads)".
  std::string device;
  // "cpu" or "cuda".
  std::string device_type;
  // Of weights and activations: "bfloat16" or "float32".
  std::string dtype;
  int64_t num_parameters = 0;
  // Those that are used for one token: of a mixture of experts, only the chosen experts'.
  int64_t num_active_parameters = 0;
  // In memory, and where files are mapped.
  int64_t weight_bytes = 0;
  // Of these, the table of embeddings in the mapped file, of which a CPU reads the rows it needs.
  int64_t mapped_weight_bytes = 0;
  // In the checkpoint, of the tensors that the model reads; those with the most bytes first.
  std::vector<WeightFormat> weight_formats;
  // Of matrices in memory, without the table of embeddings; those with the most bytes first.
  std::vector<LayoutOfWeights> weight_layouts;
  // What the layers are, one line for each kind of layer.
  std::vector<std::string> layers;
  // How the layers are computed, a line each.
  std::vector<std::string> plan;
  // Of all layers.
  int64_t kv_bytes_per_token = 0;
  int64_t kv_cache_bytes = 0;
  // Which layers share blocks of the KV cache, a line for those that see alike.
  std::vector<std::string> kv_groups;
  // Sequences for whose states there is room where layers are recurrent: no more run at once; 0 =
  // none are recurrent. While so many run, num_kept_states of other texts stay for prompts that
  // begin like them, and more while fewer run.
  int num_states = 0;
  int num_kept_states = 0;
  int64_t state_cache_bytes = 0;
  // Of these, what a sequence takes: two slots for a state each, and a log of its last tokens.
  int64_t state_slot_bytes = 0;
  int64_t state_log_bytes = 0;
  int64_t state_bytes_per_sequence() const { return 2 * state_slot_bytes + state_log_bytes; }
  // Sequences of max_model_len tokens that can run at once.
  int64_t num_full_length_sequences() const {
    // The last token is never fed back, so it needs no room.
    const int64_t blocks = num_kvcache_blocks / std::max<int64_t>(1, blocks_for(max_model_len - 1));
    return num_states > 0 ? std::min<int64_t>(blocks, num_states) : blocks;
  }
  // Of what max_model_len and the KV cache are, and why: a sentence.
  std::string sizing;
  // The model's file, or the key in a GGUF file, that gives the default temperature; empty = none
  // does.
  std::string default_temperature_source;
  // How models of this architecture mark reasoning and calls of tools, in vLLM's names; empty = not
  // at all. A model's chat template knows better.
  std::string reasoning_parser;
  std::string tool_parser;
  double load_seconds = 0;
  bool operator==(const EngineInfo&) const = default;
};

}  // namespace nanovllm
