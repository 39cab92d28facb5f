// The shortest way to generate text:
//   nanovllm::LLM llm("models/demo");
//   auto outputs = llm.generate({"Once upon a time"}, {.temperature = 0});
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

// Not thread-safe: one thread calls all methods.
class LLM {
 public:
  // See LLMEngine for what it throws.
  explicit LLM(const std::string& model, const EngineConfig& config = {});
  explicit LLM(LLMEngine engine);

  // Called after every step with the requests that changed, in the form that
  // SamplingParams::output_kind asks for, and with what the step did. Choose kDelta or kFinalOnly
  // if long outputs must not be copied at each step.
  // - Returning false ends generate(): its unfinished requests are aborted and returned with what
  //   they have.
  // - An exception leaves generate() too; its requests are discarded.
  // - Inside the callback, requests of engine() may be added and aborted, but generate() and
  //   engine().step() throw Error(kInvalidArgument).
  using Callback =
      std::function<bool(const std::vector<RequestOutput>& changed, const StepStats& step)>;

  // Generates for all prompts in the same steps; returns the outputs in the order of the prompts,
  // each with everything that was generated, whatever output_kind says.
  //
  // Throws what LLMEngine::add_request throws, with the number of the prompt, if one of the
  // requests can't be served: nothing is computed then. Throws what LLMEngine::step throws; the
  // requests are discarded then. Requests that were added to engine() directly are computed in the
  // same steps; only the callback gets their outputs.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const SamplingParams& params, const Callback& callback = {});
  // With parameters for each prompt; throws Error(kInvalidArgument) if their numbers differ. It is
  // a template so that the overload above wins where both match: GCC can convert
  // {.temperature = 0} to either type.
  template <int = 0>
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params,
                                      const Callback& callback = {}) {
    return generate_each(prompts, params, callback);
  }

  LLMEngine& engine() { return engine_; }

 private:
  class Batch;

  std::vector<RequestOutput> generate_each(const std::vector<Prompt>& prompts,
                                           const std::vector<SamplingParams>& params,
                                           const Callback& callback);

  LLMEngine engine_;
};

}  // namespace nanovllm
