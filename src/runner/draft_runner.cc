#include "runner/draft_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/check.h"
#include "runner/cache_groups.h"
#include "runner/kv_cache_plan.h"

namespace nanovllm {

namespace {

EngineConfig config_of(const ModelConfig& draft, const ModelConfig& target, EngineConfig config,
                       int max_model_len) {
  const int most = std::min(context_of(config, target).num_tokens, draft.max_context_length());
  config.max_model_len = max_model_len > 0 ? max_model_len : most;
  config.num_kvcache_blocks = -1;
  config.kv_cache_memory = std::nullopt;
  return config;
}

}  // namespace

void check_draft_model(const ModelConfig& draft, const ModelConfig& target,
                       const EngineConfig& config, int max_model_len) {
  const std::vector<int> windows = layer_windows(draft);
  if (std::ranges::find(windows, kNoKeys) != windows.end()) {
    throw_error(ErrorCode::kUnsupported,
                "{}: a model with recurrent layers can't be a draft model; take one with attention "
                "in all layers",
                draft.model_dir);
  }
  context_of(config_of(draft, target, config, max_model_len), draft);
}

std::unique_ptr<ModelRunner> make_draft_runner(const ModelConfig& draft, const ModelConfig& target,
                                               const EngineConfig& config, int max_model_len,
                                               Progress* progress) {
  CacheGroup all;
  all.layers.resize(layer_windows(draft).size());
  std::iota(all.layers.begin(), all.layers.end(), 0);
  auto backend = make_backend({.device = config.device,
                               .first_gpu = config.first_gpu,
                               .num_threads = config.num_threads,
                               .deterministic = config.deterministic,
                               .progress = progress,
                               .engine = engine_name(target)});
  return std::make_unique<ModelRunner>(draft, config_of(draft, target, config, max_model_len),
                                       std::vector{std::move(all)}, std::move(backend), progress);
}

}  // namespace nanovllm
