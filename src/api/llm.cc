#include "nanovllm/llm.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "engine/deltas.h"

namespace nanovllm {

LLM::LLM(const std::string& model_dir, const EngineConfig& config) : engine_(model_dir, config) {}

LLM::LLM(LLMEngine engine) : engine_(std::move(engine)) {}

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts,
                                         const SamplingParams& params, const Callback& callback) {
  return generate_each(prompts, std::vector<SamplingParams>(prompts.size(), params), callback);
}

// The requests of one generate(), in consecutive ids. Those that are not done when it ends, by an
// exception say, are forgotten, so that the engine is free for the next call.
class LLM::Batch {
 public:
  explicit Batch(LLMEngine& engine) : engine_(engine), stepper_(engine) {}
  ~Batch() {
    for_each_unfinished([this](uint64_t id) { engine_.discard_request(id); });
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void add(const Prompt& prompt, const SamplingParams& params) {
    const uint64_t id = engine_.add_request(prompt, params);
    if (outputs_.empty()) first_id_ = id;
    outputs_.emplace_back();
    ++num_unfinished_;
  }

  std::vector<RequestOutput> step() { return stepper_.step(); }

  void add_output(RequestOutput&& output, const std::vector<SamplingParams>& params) {
    const uint64_t i = output.request_id - first_id_;
    if (i >= outputs_.size()) return;  // of a request that somebody added to the engine
    if (output.finished) --num_unfinished_;
    if (params[i].output_kind == RequestOutputKind::kDelta) {
      append_delta(outputs_[i], std::move(output));
    } else if (output.finished) {
      outputs_[i] = std::move(output);
    }
  }

  // Takes what there is without a further step, whose other outputs nobody would see.
  void abort(const std::vector<SamplingParams>& params) {
    for_each_unfinished([&](uint64_t id) {
      if (auto output = engine_.finish_request(id)) add_output(std::move(*output), params);
    });
  }

  bool is_finished() const { return num_unfinished_ == 0; }
  std::vector<RequestOutput> take() { return std::move(outputs_); }

 private:
  template <typename F>
  void for_each_unfinished(F&& f) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!outputs_[i].finished) f(first_id_ + i);
    }
  }

  LLMEngine& engine_;
  LLMEngine::Stepper stepper_;
  uint64_t first_id_ = 0;
  std::vector<RequestOutput> outputs_;
  size_t num_unfinished_ = 0;
};

std::vector<RequestOutput> LLM::generate_each(const std::vector<Prompt>& prompts,
                                              const std::vector<SamplingParams>& params,
                                              const Callback& callback) {
  if (params.size() != prompts.size()) {
    throw_error(ErrorCode::kInvalidArgument,
                "The lengths of prompts ({}) and sampling params ({}) must be the same.",
                prompts.size(), params.size());
  }
  Batch batch(engine_);
  for (size_t i = 0; i < prompts.size(); ++i) {
    SamplingParams asked = params[i];
    if (!callback) asked.output_kind = RequestOutputKind::kFinalOnly;  // nobody sees the others
    try {
      batch.add(prompts[i], asked);
    } catch (const Error& error) {
      if (prompts.size() == 1) throw;
      throw Error(error.code(), fmt::format("prompt {}: {}", i, error.what()));
    }
  }
  while (!batch.is_finished()) {
    if (engine_.is_finished()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "The requests of generate() are gone: its engine was replaced while it ran.");
    }
    std::vector<RequestOutput> changed = batch.step();
    const bool go_on = !callback || callback(changed, engine_.last_step());
    for (RequestOutput& output : changed) batch.add_output(std::move(output), params);
    if (!go_on) batch.abort(params);
  }
  return batch.take();
}

}  // namespace nanovllm
