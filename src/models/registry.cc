// All families, and what a model's files have to say to be of one.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "models/families.h"

namespace nanovllm {
namespace {

constexpr const Family* kFamilies[] = {&kGemma2,
                                       &kGemma3,
                                       &kGemma3WithTowers,
                                       &kGlm4,
                                       &kGlm4Moe,
                                       &kGptOss,
                                       &kGranite,
                                       &kLlama,
                                       &kMistral,
                                       &kMixtral,
                                       &kOlmo2,
                                       &kOlmo3,
                                       &kOlmoe,
                                       &kOlmoHybrid,
                                       &kPhi3,
                                       &kQwen2,
                                       &kQwen2Moe,
                                       &kQwen3,
                                       &kQwen3Moe,
                                       &kQwen3Next,
                                       &kQwen3_5,
                                       &kQwen3_5WithTowers,
                                       &kQwen3_5Moe,
                                       &kQwen3_5MoeWithTowers,
                                       &kSmolLm3};

// make_model refuses it; until then its files are read like a Llama's.
constexpr Family kUnknown = {.model = {"", "", "", "", ""},
                             .model_type = "",
                             .options = [](const ModelConfig&) { return DecoderOptions(); }};

// Models, hybrids above all, that are not there yet: so begin their architectures in config.json,
// and so GGUF calls them.
constexpr std::string_view kLater[] = {"Gemma4"};
constexpr std::string_view kLaterInGguf[] = {"gemma4"};

// The architectures of GGUF files that are opened as a family.
std::vector<std::string_view> gguf_names(const Family& family) {
  std::vector<std::string_view> names;
  for (std::string_view rest = family.model.gguf; !rest.empty();) {
    const size_t end = std::min(rest.find(", "), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

// What load_model_config leaves open: sizes that are missing or do not fit together.
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

const Family* find_architecture(std::string_view architecture) {
  const auto* found = std::ranges::find(
      kFamilies, architecture,
      [](const Family* family) -> std::string_view { return family->model.architecture; });
  return found == std::end(kFamilies) ? nullptr : *found;
}

}  // namespace

const Family& find_family(std::string_view architecture, std::string_view model_type) {
  if (const Family* family = find_architecture(architecture)) return *family;
  const auto* found = std::ranges::find(
      kFamilies, model_type,
      [](const Family* family) -> std::string_view { return family->model_type; });
  return found == std::end(kFamilies) ? kUnknown : **found;
}

const Family& family_of(const GgufFields& fields) {
  const std::string& name = fields.architecture();
  const std::string& path = fields.file().path();
  std::set<std::string_view> names;
  const Family* other = nullptr;
  for (const Family* family : kFamilies) {
    const std::vector<std::string_view> own = gguf_names(*family);
    names.insert(own.begin(), own.end());
    if (std::ranges::find(own, name) == own.end()) continue;
    if (family->owns == nullptr) {
      other = family;
    } else if (family->owns(fields)) {
      return *family;
    }
  }
  if (other != nullptr) return *other;
  if (std::ranges::find(kLaterInGguf, name) != std::end(kLaterInGguf)) {
    throw_error(ErrorCode::kUnsupported,
                "{}: general.architecture {} is not supported yet: it comes in a later version",
                path, name);
  }
  throw_error(ErrorCode::kUnsupported, "{}: {}; supported are {}", path,
              name.empty()
                  ? std::string("general.architecture is missing")
                  : fmt::format("general.architecture {} is not supported", printable(name)),
              fmt::join(names, ", "));
}

std::unique_ptr<Model> make_model(const ModelContext& context) {
  const std::string& architecture = context.config.architecture;
  if (const Family* family = find_architecture(architecture)) {
    check_sizes(context.config);
    refuse_unknown_keys(context.config);
    return make_decoder(context, family->options(context.config));
  }
  for (const std::string_view name : kLater) {
    if (!architecture.starts_with(name)) continue;
    throw_error(ErrorCode::kUnsupported,
                "{}: architecture {} is not supported yet: it comes in a later version",
                context.config.config_path, architecture);
  }
  std::vector<const char*> names;
  for (const Family* family : kFamilies) names.push_back(family->model.architecture);
  throw_error(ErrorCode::kUnsupported, "{}: {}; supported are {}", context.config.config_path,
              architecture.empty() ? "names no architecture"
                                   : "architecture " + architecture + " is not supported",
              fmt::join(names, ", "));
}

std::vector<int> layer_windows(const ModelConfig& config) {
  std::vector<int> windows;
  const Family* family = find_architecture(config.architecture);
  if (family == nullptr) return windows;
  const DecoderOptions options = family->options(config);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    windows.push_back(config.recurrent.has_layer(i) ? kNoKeys
                                                    : window_of_layer(config, options, i));
  }
  return windows;
}

const SupportedModel* find_supported_model(std::string_view architecture) {
  const Family* family = find_architecture(architecture);
  return family == nullptr ? nullptr : &family->model;
}

std::vector<SupportedModel> supported_models() {
  std::vector<SupportedModel> models;
  for (const Family* family : kFamilies) models.push_back(family->model);
  return models;
}

}  // namespace nanovllm
