// Makes an engine out of a model folder or a GGUF file.
#pragma once

#include <memory>
#include <string>

#include "base/progress.h"
#include "engine/engine_core.h"

namespace nanovllm {

// What benchmarks alone may ask of an engine.
struct BenchmarkParts {
  // May be filled in until requests are added; null = none.
  std::shared_ptr<const DictatedTexts> dictated = nullptr;
};

// `model_dir` is a Hugging Face folder or a GGUF file. Throws Error if it is missing, corrupt,
// unsupported or does not fit in memory. `progress`, or null, advances while the model is loaded
// and as it computes; it must live longer than the engine. `benchmark` is null for all that serves:
// then a speculative_config that invents what is accepted is refused.
std::unique_ptr<EngineCore> load_engine_core(const std::string& model_dir,
                                             const EngineConfig& config,
                                             Progress* progress = nullptr,
                                             const BenchmarkParts* benchmark = nullptr);

// Null where the model has none.
std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& model_dir);

// Why load_engine_core would not open a model, a part of a sentence, as far as its configuration
// tells; empty = it may.
std::string why_unsupported(const std::string& model_dir);

}  // namespace nanovllm
