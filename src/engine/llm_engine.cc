#include "nanovllm/llm_engine.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "engine/engine_core.h"
#include "engine/load.h"
#include "nanovllm/prepare.h"

namespace nanovllm {

LLMEngine::LLMEngine(const std::string& model_dir, const EngineConfig& config)
    : LLMEngine(load_engine_core(model_dir, config)) {}

LLMEngine::LLMEngine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
LLMEngine::~LLMEngine() = default;
LLMEngine::LLMEngine(LLMEngine&&) noexcept = default;
LLMEngine& LLMEngine::operator=(LLMEngine&&) noexcept = default;

uint64_t LLMEngine::add_request(Prompt prompt, const SamplingParams& params,
                                const std::vector<std::vector<int32_t>>& previous_output_ids) {
  return core_->add_request(std::move(prompt), params, previous_output_ids);
}

uint64_t LLMEngine::add_request(CheckedRequest request) {
  return core_->add_request(std::move(request));
}

void LLMEngine::abort_request(uint64_t request_id) noexcept { core_->abort_request(request_id); }

void LLMEngine::discard_request(uint64_t request_id) noexcept {
  core_->discard_request(request_id);
}

std::optional<RequestOutput> LLMEngine::finish_request(uint64_t request_id) {
  return core_->finish_request(request_id);
}

LLMEngine::Stepper::Stepper(LLMEngine& engine) : engine_(engine) {
  if (engine_.has_stepper_) {
    throw_error(ErrorCode::kInvalidArgument,
                "generate() can't be called by a callback of generate(); add requests to "
                "engine() instead.");
  }
  engine_.has_stepper_ = true;
}

LLMEngine::Stepper::~Stepper() { engine_.has_stepper_ = false; }

std::vector<RequestOutput> LLMEngine::Stepper::step() { return engine_.run_step(); }

std::vector<RequestOutput> LLMEngine::step() {
  if (has_stepper_) {
    throw_error(ErrorCode::kInvalidArgument,
                "step() can't be called while generate() runs, for it would take outputs of its "
                "requests.");
  }
  return run_step();
}

std::vector<RequestOutput> LLMEngine::run_step() {
  std::vector<RequestOutput> outputs = core_->step();
#ifndef NDEBUG  // in debug and sanitizer builds
  const std::string wrong_books = core_->check_integrity();
  if (!wrong_books.empty()) print_message("nanovllm: {}\n", wrong_books);
  NANOVLLM_CHECK(wrong_books.empty());
#endif
  return outputs;
}

bool LLMEngine::is_finished() const { return core_->is_finished(); }

const StepStats& LLMEngine::last_step() const { return core_->last_step(); }

const std::vector<ScheduledRequest>& LLMEngine::last_schedule() const {
  return core_->last_schedule();
}

void LLMEngine::withhold_remarks() { core_->withhold_remarks(); }

void LLMEngine::reset_prefix_cache() { core_->reset_prefix_cache(); }

void LLMEngine::start_trace(const std::string& path) { core_->start_trace(path); }

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

RequestPreparer LLMEngine::preparer(const ChatTemplate* chat_template) const {
  RequestPreparer preparer = core_->preparer();
  preparer.chat_template = chat_template;
  return preparer;
}

int64_t LLMEngine::seed_of(uint64_t request_id) const { return core_->seed_of(request_id); }

}  // namespace nanovllm
