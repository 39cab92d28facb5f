#include "engine/draft_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "engine/load.h"
#include "engine/model_drafter.h"
#include "io/json.h"
#include "models/load_config.h"
#include "runner/cache_groups.h"
#include "runner/draft_runner.h"

namespace nanovllm {

namespace {

// A model without a tokenizer has the numbers of its tokens alone.
void check_vocabulary(const ModelConfig& draft, const ModelConfig& target,
                      const Tokenizer* tokenizer) {
  const auto own = load_tokenizer(draft.model_dir);
  std::string difference;
  if (own && tokenizer != nullptr) {
    difference = difference_of(*own, *tokenizer);
  } else if (draft.vocab_size != target.vocab_size) {
    difference =
        fmt::format("it has {} and not {}", counted(draft.vocab_size, "token"), target.vocab_size);
  }
  if (difference.empty()) return;
  throw_error(ErrorCode::kInvalidArgument,
              "{} has another vocabulary than {}: {}; take one with the same tokens",
              draft.model_dir, target.model_dir, difference);
}

void check_target(const ModelConfig& target, const EngineConfig& config) {
  const std::vector<int> windows =
      windows_of(group_layers(layer_windows(target), context_of(config, target).num_tokens));
  if (std::ranges::find(windows, 0) != windows.end()) return;
  throw_error(ErrorCode::kUnsupported,
              "speculative_config: a draft model needs a target with layers that keep all tokens, "
              "and this one has none; take the method suffix");
}

// Says of errors whose they are.
template <typename Work>
auto for_draft_model(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw_error(error.code(), "speculative_config, the draft model: {}", error.what());
  }
}

}  // namespace

std::string difference_of(const Tokenizer& draft, const Tokenizer& target) {
  const int count = std::min(draft.vocab_size(), target.vocab_size());
  for (int32_t id = 0; id < count; ++id) {
    const auto own = draft.id_to_token(id), expected = target.id_to_token(id);
    if (!own || !expected || *own == *expected) continue;
    return fmt::format("its token {} is \"{}\" and not \"{}\"", id, printable(*own),
                       printable(*expected));
  }
  return "";
}

DraftModel::DraftModel(SpeculativeConfig speculative, ModelConfig target,
                       const Tokenizer* tokenizer, EngineConfig config, Progress* progress)
    : speculative_(std::move(speculative)),
      target_(std::move(target)),
      config_(std::move(config)),
      progress_(progress) {
  check_target(target_, config_);
  config_.quantization = speculative_.quantization;
  for_draft_model([&] {
    config_.validate();
    draft_ = load_model_config(speculative_.model);
    if (!is_supported(draft_)) {
      throw_error(ErrorCode::kUnsupported, "{}: {}", draft_.model_dir,
                  why_unsupported(speculative_.model));
    }
    check_vocabulary(draft_, target_, tokenizer);
    check_draft_model(draft_, target_, config_, speculative_.max_model_len);
  });
}

int64_t DraftModel::load() {
  runner_ = for_draft_model([&] {
    return make_draft_runner(draft_, target_, config_, speculative_.max_model_len, progress_);
  });
  return runner_->block_bytes();
}

std::unique_ptr<Drafter> DraftModel::make_drafter(const Runner& target, EngineInfo& info) {
  const std::span<const int> windows = target.kv_windows();
  const auto group = std::ranges::find(windows, 0);
  NANOVLLM_CHECK(runner_ != nullptr && group != windows.end());
  runner_->allocate_kv_cache(static_cast<int>(num_draft_blocks(
      target.num_kvcache_blocks(), windows, info.kvcache_block_size, info.max_model_len)));
  EngineInfo facts;
  runner_->describe(facts);
  info.kv_bytes_per_token += facts.kv_bytes_per_token;
  info.kv_cache_bytes += facts.kv_cache_bytes;
  info.kv_groups.push_back(fmt::format(
      "beside those in {} of {}: the draft model {} ({} parameters, {} of weights), {} a token",
      windows.size() == 1 ? "the group" : "the first group", "all tokens", speculative_.model,
      facts.num_parameters, counted(facts.weight_bytes, "byte"),
      counted(facts.kv_bytes_per_token, "byte")));
  const ModelDrafterOptions options = {.max_num_batched_tokens = config_.max_num_batched_tokens,
                                       .max_model_len = runner_->context().num_tokens,
                                       .vocab_size = std::min(info.vocab_size, facts.vocab_size),
                                       .block_size = info.kvcache_block_size,
                                       .num_groups = static_cast<int>(windows.size()),
                                       .group = static_cast<int>(group - windows.begin()),
                                       .num_target_blocks = target.num_kvcache_blocks()};
  return std::make_unique<ModelDrafter>(std::move(runner_), options);
}

}  // namespace nanovllm
