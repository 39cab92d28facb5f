#include "nanovllm/llm_engine.h"

#include <filesystem>
#include <future>
#include <utility>

#include "base/check.h"
#include "engine/engine_core.h"
#include "io/model_config.h"
#include "runner/parallel_runner.h"
#include "text/tokenizer.h"

namespace nanovllm {

namespace {

std::unique_ptr<EngineCore> load(const std::string& model_dir, const EngineConfig& config) {
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

}  // namespace

LLMEngine::LLMEngine(const std::string& model_dir, const EngineConfig& config)
    : LLMEngine(load(model_dir, config)) {}

LLMEngine::LLMEngine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
LLMEngine::~LLMEngine() = default;
LLMEngine::LLMEngine(LLMEngine&&) noexcept = default;
LLMEngine& LLMEngine::operator=(LLMEngine&&) noexcept = default;

uint64_t LLMEngine::add_request(const Prompt& prompt, const SamplingParams& params) {
  return core_->add_request(prompt, params);
}

void LLMEngine::abort_request(uint64_t request_id) { core_->abort_request(request_id); }

void LLMEngine::discard_request(uint64_t request_id) { core_->discard_request(request_id); }

std::vector<RequestOutput> LLMEngine::step() { return core_->step(); }

bool LLMEngine::is_finished() const { return core_->is_finished(); }

const StepStats& LLMEngine::last_step() const { return core_->last_step(); }

const std::vector<ScheduledRequest>& LLMEngine::last_schedule() const {
  return core_->last_schedule();
}

void LLMEngine::finish_trace() { core_->finish_trace(); }

const EngineInfo& LLMEngine::info() const { return core_->info(); }

const SamplingParams& LLMEngine::default_sampling_params() const {
  return core_->default_sampling_params();
}

std::vector<int32_t> LLMEngine::encode(const std::string& text, bool add_special_tokens) const {
  return core_->tokenizer().encode(text, add_special_tokens);
}

std::string LLMEngine::decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  return core_->tokenizer().decode(ids, skip_special_tokens);
}

}  // namespace nanovllm
