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

std::string summarise(const Attention& core, const StackSpec& spec, const ModelConfig& config) {
  const bool turns = spec.rotary_tables[core.rotary_table].rotary_dim > 0;
  return fmt::format(
      "{} query and {} key-value heads of {}{}{}{}", config.num_attention_heads,
      config.num_key_value_heads, config.head_dim,
      core.window > 0 ? fmt::format(", window of {}", counted(core.window, "token")) : "",
      turns ? "" : ", no rotation", core.has_gate ? ", gated" : "");
}

std::string summarise(const GatedDelta&, const StackSpec&, const ModelConfig& config) {
  const RecurrentConfig& sizes = config.recurrent;
  return fmt::format("recurrent (gated delta rule), {} key heads of {}, {} value heads of {}",
                     sizes.num_key_heads, sizes.key_dim, sizes.num_value_heads, sizes.value_dim);
}

}  // namespace

std::vector<std::string> summarise_layers(const StackSpec& spec, const ModelConfig& config) {
  std::map<std::string, int> kinds;
  for (const LayerSpec& layer : spec.layers) {
    const std::string core =
        std::visit([&](const auto& one) { return summarise(one, spec, config); }, layer.core);
    ++kinds[fmt::format("{}, {}", core, summarise(layer.ffn, config))];
  }
  std::vector<std::string> lines;
  lines.reserve(kinds.size());
  for (const auto& [kind, count] : kinds) {
    lines.push_back(fmt::format("{}: {}", counted(count, "layer"), kind));
  }
  return lines;
}

}  // namespace nanovllm
