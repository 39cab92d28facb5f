// Any bytes as a config.json, and behind the first zero byte as a generation_config.json: refused,
// or sizes within the bounds that the models count on.
#include <algorithm>

#include "fuzzing.h"
#include "io/temp_dir_testing.h"
#include "models/load_config.h"

namespace nanovllm {
namespace {

void check(const ModelConfig& config) {
  using fuzzing::require;
  for (const int size : {config.vocab_size, config.hidden_size, config.intermediate_size,
                         config.num_attention_heads, config.num_key_value_heads, config.head_dim}) {
    require(size >= 0 && size <= 1 << 28, "no product of two sizes overflows");
  }
  require(config.num_hidden_layers >= 0 && config.num_hidden_layers <= 10'000,
          "layers are bounded");
  require(config.sliding_layers.empty() ||
              config.sliding_layers.size() == static_cast<size_t>(config.num_hidden_layers),
          "every layer has a window or none");
  require(config.unrotated_layers.empty() ||
              config.unrotated_layers.size() == static_cast<size_t>(config.num_hidden_layers),
          "every layer turns or not");
  require(
      config.rotary_dim >= 0 && config.rotary_dim <= config.head_dim && config.rotary_dim % 2 == 0,
      "pairs of a head turn");
  const ExpertsConfig& experts = config.experts;
  for (const int size : {experts.num, experts.num_active, experts.width, experts.shared_width}) {
    require(size >= 0 && size <= 1 << 28, "no product of two sizes overflows");
  }
  require(experts.num_active <= experts.num, "there are experts to choose from");
  require(
      experts.num == 0 || experts.layers.size() == static_cast<size_t>(config.num_hidden_layers),
      "every layer has experts or none");
  const RecurrentConfig& recurrent = config.recurrent;
  require(recurrent.layers.empty() ||
              recurrent.layers.size() == static_cast<size_t>(config.num_hidden_layers),
          "every layer is recurrent or not");
  if (std::ranges::count(recurrent.layers, true) > 0) {
    for (const int size : {recurrent.num_key_heads, recurrent.num_value_heads, recurrent.key_dim,
                           recurrent.value_dim, recurrent.conv_width}) {
      require(size >= 1 && size <= 1 << 28, "no product of two sizes overflows");
    }
    require(recurrent.num_value_heads % recurrent.num_key_heads == 0,
            "value heads share key heads evenly");
  }
  require(config.max_context_length() >= config.max_position_embeddings, "scaling only stretches");
  for (const int32_t id : config.eos_token_ids) require(id >= 0, "token ids are not negative");
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const testing::TempDir kFolder;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view config = input.substr(0, input.find('\0'));
  kFolder.write("config.json", config);
  kFolder.write("generation_config.json",
                config.size() == input.size() ? "{}" : input.substr(config.size() + 1));
  fuzzing::run_or_refuse([&] { check(load_model_config(kFolder.path())); });
  return 0;
}
