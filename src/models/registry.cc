// Which architecture of config.json is built by what.
#include <fmt/ranges.h>

#include "base/check.h"
#include "models/families.h"

namespace nanovllm {
namespace {

struct Entry {
  const char* architecture;
  std::unique_ptr<Model> (*make)(const ModelContext&);
};

constexpr Entry kModels[] = {
    {"Gemma2ForCausalLM", make_gemma2},
    {"Gemma3ForCausalLM", make_gemma3},
    {"Gemma3ForConditionalGeneration", make_gemma3},  // its text part
    {"GptOssForCausalLM", make_gpt_oss},
    {"LlamaForCausalLM", make_llama},
    {"MistralForCausalLM", make_mistral},
    {"MixtralForCausalLM", make_mixtral},
    {"Qwen2ForCausalLM", make_qwen2},
    {"Qwen2MoeForCausalLM", make_qwen2_moe},
    {"Qwen3ForCausalLM", make_qwen3},
    {"Qwen3MoeForCausalLM", make_qwen3_moe},
};

// What ModelConfig::load leaves open: sizes that are missing or do not fit together.
void check_sizes(const ModelConfig& config) {
  const std::string& path = config.config_path;
  const struct {
    const char* key;
    int value;
  } required[] = {
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"max_position_embeddings", config.max_position_embeddings},
  };
  for (const auto& [key, value] : required) {
    if (value == 0) throw_error(ErrorCode::kCorruptData, "{}: \"{}\" is missing", path, key);
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw_error(ErrorCode::kCorruptData,
                "{}: num_attention_heads is {}, expected a multiple of num_key_value_heads, which "
                "is {}",
                path, config.num_attention_heads, config.num_key_value_heads);
  }
  if (config.head_dim == 0 || config.head_dim % 8 != 0) {
    throw_error(ErrorCode::kUnsupported, "{}: head_dim is {}, only multiples of 8 are supported",
                path, config.head_dim);
  }
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelContext& context) {
  const std::string& architecture = context.config.architecture;
  for (const Entry& entry : kModels) {
    if (architecture != entry.architecture) continue;
    check_sizes(context.config);
    return entry.make(context);
  }
  throw_error(ErrorCode::kUnsupported, "{}: {}; supported are {}", context.config.config_path,
              architecture.empty() ? "names no architecture"
                                   : "architecture " + architecture + " is not supported",
              fmt::join(supported_architectures(), ", "));
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.architecture);
  return names;
}

}  // namespace nanovllm
