#include "engine/load.h"

#include <filesystem>
#include <future>
#include <utility>

#include "io/model_config.h"
#include "runner/parallel_runner.h"
#include "text/tokenizer.h"

namespace nanovllm {

std::unique_ptr<EngineCore> load_engine_core(const std::string& model_dir,
                                             const EngineConfig& config) {
  config.validate();
  const ModelConfig model = ModelConfig::load(model_dir);
  EngineParts parts;
  parts.config = config;
  parts.model_dir = model_dir;
  parts.eos_token_ids = model.eos_token_ids;
  parts.default_sampling_params = model.default_sampling_params;
  // Large vocabularies take as long to read as a device takes to wake up.
  auto tokenizer = std::async(std::launch::async, [&]() -> std::unique_ptr<const Tokenizer> {
    const bool has_one =
        std::filesystem::exists(std::filesystem::path(model_dir) / "tokenizer.json");
    return has_one ? Tokenizer::load(model_dir) : nullptr;
  });
  parts.runner = make_runner(model, config, parts.info);
  parts.tokenizer = tokenizer.get();
  // Not before: a model that can't be loaded leaves an older trace as it is.
  if (!config.trace_file.empty()) parts.trace = std::make_unique<TraceWriter>(config.trace_file);
  return std::make_unique<EngineCore>(std::move(parts));
}

}  // namespace nanovllm
