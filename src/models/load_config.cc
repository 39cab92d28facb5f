#include "models/load_config.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/config_readers.h"
#include "io/file.h"
#include "io/rope_config.h"
#include "models/families.h"

namespace nanovllm {
namespace {

ModelConfig read_gguf_file(const Gguf& file) {
  const GgufFields fields(file);
  const Family& family = family_of(fields);
  ModelConfig config;
  config.model_dir = config.config_path = file.path();
  config.architecture = family.model.architecture;
  config.model_type = family.model_type;
  family.defaults(config);
  read_sizes(fields, config, family.rules);
  if (family.options(config).experts) read_experts(fields, config);
  family.read_gguf(fields, config);
  fields.refuse_unread();
  read_tensors(fields, config);
  read_rope(fields, config);
  read_sampling(fields, config);
  config.gguf = {.interleaved_head = family.gguf_turns_neighbours ? config.head_dim : 0,
                 .has_post_norms = family.gguf_has_post_norms};
  return config;
}

std::string architecture_of(const JsonFields& fields) {
  const Json* names = fields.find("architectures");
  if (names == nullptr) return "";
  if (!names->is_array() || names->empty() || !names->front().is_string()) {
    fields.fail("architectures", "a list of one name");
  }
  return names->front().get<std::string>();
}

void read_config_json(const JsonFields& fields, ModelConfig& config) {
  config.architecture = architecture_of(fields);
  config.model_type = fields.string("model_type").value_or("");
  const Family& family = find_family(config.architecture, config.model_type);
  family.defaults(config);
  config.gguf.has_experts_in_order = family.rules.experts_are_in_order;
  config.quantization = load_quantization_config(fields, config.model_dir);
  read_sizes(fields, config);
  read_experts(fields, config);
  family.read(fields, config);
  read_windows(fields, config, family.rules);
  read_rope(fields, config, family.rules);
  read_dtype(fields, config);
  read_end_tokens(fields, config);
  add_unknown_keys(fields, "", config);
}

}  // namespace

ModelConfig load_model_config(const std::string& model) {
  if (const auto gguf = find_gguf(model)) return read_gguf_file(Gguf(*gguf));
  check_is_folder(model);
  ModelConfig config;
  config.model_dir = model;
  config.config_path = model + "/config.json";
  if (!file_exists(config.config_path)) {
    throw_error(ErrorCode::kNotFound, "{}: neither config.json nor a GGUF file is in this folder",
                model);
  }
  Json document =
      parse_json(read_text_file(config.config_path, kMaxConfigBytes), config.config_path);
  const std::string whole = architecture_of(JsonFields(document, config.config_path));
  if (find_family(whole, "").rules.has_text_config) keep_text_part(document);
  read_config_json(JsonFields(document, config.config_path), config);
  const std::string generation_path = model + "/generation_config.json";
  if (file_exists(generation_path)) read_generation_config(generation_path, config);
  return config;
}

bool is_supported(const ModelConfig& config) {
  return find_supported_model(config.architecture) != nullptr;
}

}  // namespace nanovllm
