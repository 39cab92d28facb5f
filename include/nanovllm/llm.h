// The shortest way to generate text:
//   nanovllm::LLM llm("models/demo");
//   auto outputs = llm.generate({"Once upon a time"}, {.temperature = 0});
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

class LLM {
 public:
  // See LLMEngine for what it throws.
  explicit LLM(const std::string& model, const EngineConfig& config = {});
  explicit LLM(LLMEngine engine);

  // Called after every step with the requests that changed (as SamplingParams::output_kind asks)
  // and what the step did; return false to stop: it is not called again, and what is still
  // unfinished is aborted and returned as far as it came. Choose kDelta or kFinalOnly where long
  // outputs must not be copied each step. It may add and abort requests of engine(), but generate()
  // and engine().step() throw Error(kInvalidArgument) there.
  using Callback =
      std::function<bool(const std::vector<RequestOutput>& changed, const StepStats& step)>;

  // Generates for all prompts at once; outputs are in the order of the prompts. One SamplingParams
  // for all, or one each. What is returned is always complete, whatever output_kind says. Throws
  // what LLMEngine::add_request throws, naming the prompt, before any work when one of them or its
  // parameters can't be served, and what LLMEngine::step throws; its requests are gone then.
  // Requests added to engine() directly run along; their outputs go to the callback only.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const SamplingParams& params, const Callback& callback = {});
  // A template because one comes second where both fit: GCC takes {.temperature = 0} for either.
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
