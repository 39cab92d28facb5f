#include "io/model_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace nanovllm {

std::string problem_of(const ExpertsConfig& experts) {
  const bool fits =
      experts.num_active > 0 && experts.num % experts.num_groups == 0 &&
      experts.num / experts.num_groups * experts.num_active_groups >= experts.num_active;
  if (fits) return "";
  return fmt::format("{} active of {} experts in {} of {} groups do not fit together",
                     experts.num_active, experts.num, experts.num_active_groups,
                     experts.num_groups);
}

std::vector<bool> layers_but_every(int64_t nth, int num_layers) {
  std::vector<bool> layers;
  for (int i = 1; i <= num_layers; ++i) layers.push_back(i % nth != 0);
  return layers;
}

int ModelConfig::max_context_length() const {
  double stretched = max_position_embeddings;
  if (rope_scaling.kind == "linear" && !positions_are_stretched) stretched *= rope_scaling.factor;
  if (rope_scaling.kind == "yarn") {
    stretched =
        std::max(stretched, rope_scaling.original_max_position_embeddings * rope_scaling.factor);
  }
  return static_cast<int>(std::min<double>(stretched, INT32_MAX));
}

}  // namespace nanovllm
