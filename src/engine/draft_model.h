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
  // Finds mistakes, and loads nothing yet but configurations. `tokenizer` is the target's, or null.
  // Throws Error(kInvalidArgument) with a sentence that says where the vocabularies differ, and
  // Error(kUnsupported) where layers of the draft model are recurrent, or none of the target keeps
  // all tokens.
  DraftModel(SpeculativeConfig speculative, ModelConfig target, const Tokenizer* tokenizer,
             EngineConfig config, Progress* progress);

  // Loads it, and returns the bytes of a block of its KV cache. Throws what make_draft_runner()
  // throws.
  int64_t load();
  // To be called once, when both are there. Adds what it takes to what `info` says. Throws
  // Error(kOutOfMemory).
  std::unique_ptr<Drafter> make_drafter(const Runner& target, EngineInfo& info);

 private:
  const SpeculativeConfig speculative_;
  const ModelConfig target_;
  EngineConfig config_;  // with the draft model's quantization
  Progress* const progress_;
  ModelConfig draft_;
  std::unique_ptr<ModelRunner> runner_;
};

// Where two vocabularies differ, a part of a sentence: "its token 5 is \"a\" and not \"b\""; empty
// = nowhere. A token that one of them has and the other has not is no difference.
std::string difference_of(const Tokenizer& draft, const Tokenizer& target);

}  // namespace nanovllm
