#include "models/layer_summary.h"

#include <map>

#include "base/message.h"

namespace nanovllm {

std::vector<std::string> summarise_layers(const StackSpec& spec, const ModelConfig& config) {
  const std::string mlp = fmt::format("MLP of {}", config.intermediate_size);
  std::map<std::string, int> kinds;
  for (const LayerSpec& layer : spec.layers) {
    const auto& core = std::get<Attention>(layer.core);
    const bool is_dense = std::holds_alternative<Dense>(layer.ffn);
    const bool turns = spec.rotary_tables[core.rotary_table].rotary_dim > 0;
    ++kinds[fmt::format(
        "{} query and {} key-value heads of {}{}{}, {}", config.num_attention_heads,
        config.num_key_value_heads, config.head_dim,
        core.window > 0 ? fmt::format(", window of {}", counted(core.window, "token")) : "",
        turns ? "" : ", no rotation", is_dense ? mlp : "experts")];
  }
  std::vector<std::string> lines;
  for (const auto& [kind, count] : kinds)
    lines.push_back(fmt::format("{}: {}", counted(count, "layer"), kind));
  return lines;
}

}  // namespace nanovllm
