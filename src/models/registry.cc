// Which architecture of config.json is built by what.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "models/families.h"

namespace nanovllm {
namespace {

struct Entry {
  SupportedModel model;
  std::unique_ptr<Model> (*make)(const ModelContext&);
};

constexpr Entry kModels[] = {
    {{"Gemma2ForCausalLM", "Gemma 2", "gemma2", "", ""}, make_gemma2},
    {{"Gemma3ForCausalLM", "Gemma 3", "gemma3", "", ""}, make_gemma3},
    {{"Gemma3ForConditionalGeneration", "Gemma 3, the text part", "", "", ""}, make_gemma3},
    {{"Glm4ForCausalLM", "GLM-4", "glm4", "", ""}, make_glm4},
    {{"Glm4MoeForCausalLM", "GLM-4.5", "glm4moe", "glm45", "glm45"}, make_glm4_moe},
    {{"GptOssForCausalLM", "gpt-oss", "gpt-oss", "openai_gptoss", "openai"}, make_gpt_oss},
    {{"GraniteForCausalLM", "Granite 3", "granite", "granite", "granite"}, make_granite},
    {{"LlamaForCausalLM", "Llama 2, Llama 3", "llama", "", "llama3_json"}, make_llama},
    {{"MistralForCausalLM", "Mistral", "llama, mistral3", "mistral", "mistral"}, make_mistral},
    {{"MixtralForCausalLM", "Mixtral", "llama", "", "mistral"}, make_mixtral},
    {{"Olmo2ForCausalLM", "OLMo 2", "olmo2", "", ""}, make_olmo2},
    {{"Olmo3ForCausalLM", "OLMo 3", "olmo2", "olmo3", "olmo3"}, make_olmo3},
    {{"OlmoeForCausalLM", "OLMoE", "olmoe", "", ""}, make_olmoe},
    {{"Phi3ForCausalLM", "Phi-3, Phi-4", "phi3", "", ""}, make_phi3},
    {{"Qwen2ForCausalLM", "Qwen2, Qwen2.5", "qwen2", "", "hermes"}, make_qwen2},
    {{"Qwen2MoeForCausalLM", "Qwen2-MoE", "qwen2moe", "", "hermes"}, make_qwen2_moe},
    {{"Qwen3ForCausalLM", "Qwen3", "qwen3", "qwen3", "hermes"}, make_qwen3},
    {{"Qwen3MoeForCausalLM", "Qwen3-MoE", "qwen3moe", "qwen3", "hermes"}, make_qwen3_moe},
    {{"SmolLM3ForCausalLM", "SmolLM3", "smollm3", "qwen3", "hermes"}, make_smollm3},
};

// So begin the architectures of models, hybrids above all, that are not there yet.
constexpr std::string_view kLater[] = {"Gemma4", "Qwen3Next", "Qwen3_5"};

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

void refuse_unknown_keys(const ModelConfig& config) {
  if (config.unknown_keys.empty()) return;
  throw_error(ErrorCode::kUnsupported,
              "{}: nothing here knows \"{}\", which may change what the model computes; take it "
              "out of the file if it does not",
              config.config_path, fmt::join(config.unknown_keys, "\", \""));
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelContext& context) {
  const std::string& architecture = context.config.architecture;
  for (const Entry& entry : kModels) {
    if (architecture != entry.model.architecture) continue;
    check_sizes(context.config);
    refuse_unknown_keys(context.config);
    return entry.make(context);
  }
  for (const std::string_view name : kLater) {
    if (!architecture.starts_with(name)) continue;
    throw_error(ErrorCode::kUnsupported,
                "{}: architecture {} is not supported yet: it comes in a later version",
                context.config.config_path, architecture);
  }
  std::vector<const char*> names;
  for (const Entry& entry : kModels) names.push_back(entry.model.architecture);
  throw_error(ErrorCode::kUnsupported, "{}: {}; supported are {}", context.config.config_path,
              architecture.empty() ? "names no architecture"
                                   : "architecture " + architecture + " is not supported",
              fmt::join(names, ", "));
}

const SupportedModel* find_supported_model(std::string_view architecture) {
  const auto* found = std::ranges::find(kModels, architecture, [](const Entry& entry) {
    return std::string_view(entry.model.architecture);
  });
  return found == std::end(kModels) ? nullptr : &found->model;
}

std::vector<SupportedModel> supported_models() {
  std::vector<SupportedModel> models;
  for (const Entry& entry : kModels) models.push_back(entry.model);
  return models;
}

}  // namespace nanovllm
