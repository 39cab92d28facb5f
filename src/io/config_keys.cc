#include "io/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/message.h"

namespace nanovllm {
namespace {

// What changes nothing of a text's probabilities, or is known and counts in some families only.
constexpr std::string_view kHarmlessKeys[] = {
    // Training, and how transformers computes.
    "attention_dropout", "attn_implementation", "attn_pdrop", "cache_implementation",
    "chunk_size_feed_forward", "embd_pdrop", "gradient_checkpointing", "hidden_dropout",
    "initializer_range", "output_attentions", "output_hidden_states", "output_router_logits",
    "pretraining_tp", "router_aux_loss_coef", "router_jitter_noise", "resid_pdrop", "return_dict",
    "neftune_noise_alpha", "torchscript", "use_bfloat16", "use_cache",
    // Where a model comes from, and its tokens and labels.
    "auto_map", "bos_token_id", "cls_token_id", "custom_pipelines", "decoder_start_token_id",
    "finetuning_task", "id2label", "label2id", "pad_token_id", "prefix", "problem_type",
    "sep_token_id", "task_specific_params", "tokenizer_class", "transformers.js_config",
    "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version",
    // Sampling, which is generation_config.json's.
    "do_sample", "length_penalty", "max_length", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
    // Of another layout, or without effect where they are not asked for. Chunked attention is for
    // contexts that are longer than those that transformers computes.
    "attn_factor", "dual_chunk_attention_config", "experts_per_token", "full_attn_mod",
    "hidden_act", "initial_context_length", "interpolate_factor", "is_llama_config", "layer_types",
    "max_sequence_length", "max_window_layers", "no_rope_layer_interval",
    // Which of three positions, which are equal in texts, a frequency turns by.
    "mrope_interleaved", "mrope_section", "original_max_position_embeddings", "sliding_window",
    "sliding_window_pattern", "torch_dtype"};

}  // namespace

std::optional<std::vector<bool>> read_layer_types(const JsonFields& fields, std::string_view type,
                                                  int num_layers) {
  constexpr const char* kKey = "layer_types";
  const Json* types = fields.find(kKey);
  if (types == nullptr) return std::nullopt;
  const std::string expected = fmt::format("\"{}\" or \"full_attention\"", type);
  if (!types->is_array()) fields.fail(kKey, fmt::format("a list of {}", expected));
  if (std::ssize(*types) != num_layers) {
    throw_error(ErrorCode::kCorruptData, "{}: {} has {}, expected one for each of {} layers",
                fields.where(), kKey, counted(std::ssize(*types), "element"), num_layers);
  }
  std::vector<bool> layers;
  for (const Json& entry : *types) {
    if (entry != type && entry != "full_attention") {
      throw_error(ErrorCode::kCorruptData, "{}: {}[{}] is {}, expected {}", fields.where(), kKey,
                  layers.size(), shown(entry), expected);
    }
    layers.push_back(entry == type);
  }
  return layers;
}

void add_unknown_keys(const JsonFields& fields, const std::string& prefix, ModelConfig& config) {
  for (const std::string& key : fields.unread()) {
    const bool is_known =
        key.starts_with("_") || std::ranges::find(kHarmlessKeys, key) != std::end(kHarmlessKeys);
    if (!is_known) config.unknown_keys.push_back(prefix + key);
  }
}

}  // namespace nanovllm
