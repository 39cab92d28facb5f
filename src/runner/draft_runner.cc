#include "runner/draft_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/check.h"
#include "runner/cache_groups.h"
#include "runner/kv_cache_plan.h"

namespace nanovllm {

namespace {

CacheGroup group_of_all(const ModelConfig& model) {
  const std::vector<int> windows = layer_windows(model);
  CacheGroup group;
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] == kNoKeys) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: a model with recurrent layers can't be a draft model; take one with "
                  "attention in all layers",
                  model.model_dir);
    }
    group.layers.push_back(static_cast<int>(layer));
  }
  return group;
}

}  // namespace

std::unique_ptr<ModelRunner> make_draft_runner(const ModelConfig& draft, const ModelConfig& target,
                                               EngineConfig config, int max_model_len,
                                               Progress* progress) {
  std::vector<CacheGroup> groups = {group_of_all(draft)};
  const int most = std::min(context_of(config, target).num_tokens, draft.max_context_length());
  config.max_model_len = max_model_len > 0 ? max_model_len : most;
  config.num_kvcache_blocks = -1;
  config.kv_cache_memory = std::nullopt;
  auto backend = make_backend({.device = config.device,
                               .first_gpu = config.first_gpu,
                               .num_threads = config.num_threads,
                               .deterministic = config.deterministic,
                               .progress = progress,
                               .engine = engine_name(target)});
  return std::make_unique<ModelRunner>(draft, config, std::move(groups), std::move(backend),
                                       progress);
}

}  // namespace nanovllm
