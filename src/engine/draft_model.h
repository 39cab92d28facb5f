// A draft model, from its files to its drafter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/progress.h"
#include "engine/drafter.h"
#include "engine/speculative_config.h"
#include "io/model_config.h"
#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "nanovllm/tokenizer.h"
#include "runner/model_runner.h"

namespace nanovllm {

class DraftModel {
 public:
  // Loads it. `tokenizer` is the target's, or null. Throws Error(kInvalidArgument) with a sentence
  // that says where the vocabularies differ, and what make_draft_runner() throws.
  DraftModel(const SpeculativeConfig& speculative, const ModelConfig& target,
             const Tokenizer* tokenizer, const EngineConfig& config, Progress* progress);

  // What each block of the target's KV cache takes more.
  int64_t block_bytes() const { return runner_->block_bytes(); }
  // To be called once, when the target is there. Adds what it takes to what `info` says. Throws
  // Error(kUnsupported) where the target has no layers that keep all tokens, and
  // Error(kOutOfMemory).
  std::unique_ptr<Drafter> make_drafter(const Runner& target, EngineInfo& info);

 private:
  const std::string model_;
  std::unique_ptr<ModelRunner> runner_;
  const int max_num_batched_tokens_;
};

// Where two vocabularies differ, a part of a sentence: "its token 5 is \"a\" and not \"b\""; empty
// = nowhere. A token that one of them has and the other has not is no difference.
std::string difference_of(const Tokenizer& draft, const Tokenizer& target);

}  // namespace nanovllm
