#include "models/layer_summary.h"

#include <map>

#include "base/message.h"

namespace nanovllm {
namespace {

std::string summarise(const std::variant<Dense, Experts>& ffn, const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  if (std::holds_alternative<Dense>(ffn)) return fmt::format("MLP of {}", config.intermediate_size);
  const std::string shared =
      experts.shared_width > 0 ? fmt::format(", a shared one of {}", experts.shared_width) : "";
  return fmt::format("{} of {} experts of {}{}", experts.num_active, experts.num, experts.width,
                     shared);
}

}  // namespace

std::vector<std::string> summarise_layers(const StackSpec& spec, const ModelConfig& config) {
  std::map<std::string, int> kinds;
  for (const LayerSpec& layer : spec.layers) {
    const auto& core = std::get<Attention>(layer.core);
    const bool turns = spec.rotary_tables[core.rotary_table].rotary_dim > 0;
    ++kinds[fmt::format(
        "{} query and {} key-value heads of {}{}{}, {}", config.num_attention_heads,
        config.num_key_value_heads, config.head_dim,
        core.window > 0 ? fmt::format(", window of {}", counted(core.window, "token")) : "",
        turns ? "" : ", no rotation", summarise(layer.ffn, config))];
  }
  std::vector<std::string> lines;
  lines.reserve(kinds.size());
  for (const auto& [kind, count] : kinds) {
    lines.push_back(fmt::format("{}: {}", counted(count, "layer"), kind));
  }
  return lines;
}

}  // namespace nanovllm
