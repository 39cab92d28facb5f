// The engine below LLM: requests in, one step at a time, outputs out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "nanovllm/error.h"
#include "nanovllm/outputs.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

// A prompt as text or as token ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

// What one step did, for progress displays and metrics.
struct StepStats {
  int num_prefill_tokens = 0;  // prompt tokens computed (recomputed ones included)
  int num_decode_tokens = 0;   // sequences that decoded one token
  // While the step ran. Between steps nothing is told: without requests they are 0.
  int num_running = 0;
  int num_waiting = 0;
  int num_used_blocks = 0;  // of the KV cache
  int num_total_blocks = 0;
  double seconds = 0;
  // Since the last step that was told; what they count is what vLLM's metrics of these names do.
  int num_preemptions = 0;
  int64_t num_prompt_tokens = 0;         // of completions that got their first output token
  int64_t num_generation_tokens = 0;     // output tokens
  int64_t num_prefix_cache_queries = 0;  // prompt tokens of completions that began to run
  int64_t num_prefix_cache_hits = 0;     // of these, those that the cache held
  bool operator==(const StepStats&) const = default;
};

// One line of a step's composition: what `--log-steps` prints.
struct ScheduledRequest {
  uint64_t request_id = 0;
  int index = 0;                // which of the request's n completions
  int num_computed_tokens = 0;  // tokens whose KV was there before the step
  int num_new_tokens = 0;       // tokens computed by the step
  int num_cached_tokens = 0;    // prompt tokens that came from the prefix cache
  bool sampled = false;         // whether the step drew its next token
  bool decode = false;          // whether what it computed was the token drawn last, not a prompt
};

class EngineCore;

// Not thread-safe: one thread calls all methods. abort_request may be called at any moment between
// steps. The threads that an engine starts block all signals but those of their own faults, so that
// the program's handlers run in its own threads.
class LLMEngine {
 public:
  // Loads a Hugging Face model folder or a GGUF file. Throws Error when it is missing, corrupt,
  // unsupported or does not fit.
  explicit LLMEngine(const std::string& model, const EngineConfig& config = {});
  // An engine around a core that is already set up (src/engine/engine_core.h).
  explicit LLMEngine(std::unique_ptr<EngineCore> core);
  ~LLMEngine();
  LLMEngine(LLMEngine&&) noexcept;
  LLMEngine& operator=(LLMEngine&&) noexcept;

  // Queues a request and returns its id. Throws Error(kInvalidArgument) when it can never be served
  // (empty prompt, too long, ids outside the vocabulary, parameters out of range, more KV than
  // there is), or kUnsupported for a text prompt or SamplingParams::stop where the model has no
  // tokenizer; the engine goes on unharmed.
  //
  // previous_output_ids: of each completion, or of the first ones, the output ids that another
  // engine generated and its user has seen. The request goes on behind them as it would have there,
  // the same tokens and text, where params has its seed; max_tokens counts them. They and their
  // text, and with them log-probabilities of the prompt, are in no kDelta output; elsewhere they
  // have no log-probabilities. A completion that they end has ended, which the next step tells.
  // Throws Error(kInvalidArgument) where they go on behind their end.
  uint64_t add_request(const Prompt& prompt, const SamplingParams& params,
                       const std::vector<std::vector<int32_t>>& previous_output_ids = {});
  // Ends a request now; its last output has finish_reason kAbort. Unknown ids are ignored.
  void abort_request(uint64_t request_id) noexcept;
  // Runs one step and returns the requests that gained tokens or ended in it. Does nothing when
  // there is no work. Throws Error when a step fails on the device: what was not collected is
  // computed again by the next step(), and no request is lost; but ranks that share a model can't
  // go on, and every later step throws. Throws std::bad_alloc where memory ends, which may end a
  // request, and Error(kInvalidArgument) while LLM::generate() runs.
  std::vector<RequestOutput> step();
  bool is_finished() const;
  const StepStats& last_step() const;
  // What the step of last_step() computed, decodes first; empty when it computed nothing.
  const std::vector<ScheduledRequest>& last_schedule() const;
  // Completes EngineConfig::trace_file. Throws Error(kIo) with one sentence when it could not be
  // written; the destructor does the same work but can only print that sentence.
  void finish_trace();
  const EngineInfo& info() const;
  // The parameters a request starts from: the model's own (generation_config.json,
  // general.sampling.* of a GGUF file) over SamplingParams' defaults.
  const SamplingParams& default_sampling_params() const;
  // Text <-> ids with the model's tokenizer. Throws Error(kUnsupported) when it has none.
  std::vector<int32_t> encode(const std::string& text, bool add_special_tokens = true) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = true) const;

 private:
  friend class EngineLoop;
  friend class LLM;
  void discard_request(uint64_t request_id) noexcept;
  std::optional<RequestOutput> finish_request(uint64_t request_id);
  std::vector<RequestOutput> run_step();

  std::unique_ptr<EngineCore> core_;
  bool generating_ = false;  // LLM::generate() takes what the steps give
};

}  // namespace nanovllm
