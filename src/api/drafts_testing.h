// Engines with drafters of one's own, for tests of the whole engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/speculative_config.h"
#include "models/load_config.h"
#include "nanovllm/llm.h"
#include "nanovllm/tokenizer.h"
#include "runner/parallel_runner.h"

namespace nanovllm::test {

// As a model is loaded, without a drafter; its tokenizer is the caller's.
inline EngineParts parts_of(const std::string& path, const EngineConfig& config) {
  config.validate();
  const ModelConfig model = load_model_config(path);
  EngineParts parts;
  parts.config = config;
  parts.model_dir = path;
  parts.eos_token_ids = model.eos_token_ids;
  parts.runner = make_runner(model, config, parts.info);
  return parts;
}

inline LLM llm_of(EngineParts parts) {
  auto core = std::make_unique<EngineCore>(std::move(parts));
  core->withhold_remarks();
  return LLM(LLMEngine(std::move(core)));
}

// All that is proposed is verified, however seldom it comes.
inline DraftingParts all_of(std::unique_ptr<Drafter> drafter) {
  DraftingParts parts;
  parts.drafter = std::move(drafter);
  return parts;
}

inline DraftingParts all_of(const char* config) {
  return all_of(make_drafting(*parse_speculative_config(config), nullptr).drafter);
}

// Up to 11 of these ids, whatever was asked.
class RandomDrafter final : public Drafter {
 public:
  explicit RandomDrafter(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      const int count = std::min(request.most, static_cast<int>(rng_() % 12));
      for (int i = 0; i < count; ++i) request.draft.ids.push_back(ids_[rng_() % ids_.size()]);
    }
  }
  void ended(const Sequence& /*sequence*/) noexcept override {}

 private:
  const std::vector<int32_t> ids_;
  std::mt19937 rng_{1};
};

// What each completion of each request turned out to be, beginning with request 0.
class Prophet final : public Drafter {
 public:
  explicit Prophet(const std::vector<RequestOutput>& future) : future_(future) {}
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      const Sequence& sequence = *request.sequence;
      const auto& ids = future_.at(sequence.request_id).outputs.at(sequence.index).token_ids;
      const auto begin = ids.begin() + std::ssize(sequence.output());
      request.draft.ids.assign(begin,
                               begin + std::min(ids.end() - begin, std::ptrdiff_t{request.most}));
    }
  }
  void ended(const Sequence& /*sequence*/) noexcept override {}

 private:
  const std::vector<RequestOutput>& future_;
};

}  // namespace nanovllm::test
