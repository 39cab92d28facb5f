// The engine below LLM: requests in, one step at a time, outputs out.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
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

// What one step did, for progress displays and metrics. All 0 if it computed nothing.
struct StepStats {
  // Prompt tokens computed, including those that are computed again after a preemption.
  int num_prefill_tokens = 0;
  // Tokens computed by decoding sequences: one each, and their drafts.
  int num_decode_tokens = 0;
  // At the time of the step.
  int num_running = 0;
  int num_waiting = 0;
  // Of the KV cache.
  int num_used_blocks = 0;
  int num_total_blocks = 0;
  // Sequences that have states, and those for whose states there is room; 0 = no layers are
  // recurrent.
  int num_used_states = 0;
  int num_total_states = 0;
  // From the end of the step before, or from its own submission if that was later, to its end.
  double seconds = 0;
  // Counted since the step before; the meanings are those of vLLM's metrics with these names.
  int num_preemptions = 0;
  // Of completions that got their first output token.
  int64_t num_prompt_tokens = 0;
  // Output tokens.
  int64_t num_generation_tokens = 0;
  // Prompt tokens of completions that began to run, and how many of them the cache held.
  int64_t num_prefix_cache_queries = 0;
  int64_t num_prefix_cache_hits = 0;
  // Speculative decoding: sequences that had a draft, the tokens of these drafts, and how often
  // that at each place of a draft became one of the output.
  int num_drafts = 0;
  int num_draft_tokens = 0;
  std::vector<int> num_accepted_per_pos = {};

  int num_accepted_tokens() const {
    return std::accumulate(num_accepted_per_pos.begin(), num_accepted_per_pos.end(), 0);
  }
  // What decoding sequences computed without the drafts that were wrong.
  int num_kept_decode_tokens() const {
    return num_decode_tokens - num_draft_tokens + num_accepted_tokens();
  }
  bool operator==(const StepStats&) const = default;
};

// One sequence in a step: a line of `--log-steps`.
struct ScheduledRequest {
  uint64_t request_id = 0;
  // Which of the request's n completions.
  int index = 0;
  // Tokens whose KV was there before the step.
  int num_computed_tokens = 0;
  // Tokens computed by the step.
  int num_new_tokens = 0;
  // Prompt tokens that came from the prefix cache when the completion began.
  int num_cached_tokens = 0;
  // true: the step drew the next token.
  bool sampled = false;
  // true: it computed the token drawn last (decode); false: a part of a prompt.
  bool decode = false;
};

class ChatTemplate;
class CheckedRequest;
class EngineCore;
struct RequestPreparer;

// Not thread-safe: one thread calls all methods. The threads that an engine starts block all
// signals except those of faults such as SIGSEGV, so that the program's handlers run in the
// program's own threads.
class LLMEngine {
 public:
  // Loads a Hugging Face model folder or a GGUF file. Throws Error if it is missing, corrupt,
  // unsupported or does not fit in memory.
  explicit LLMEngine(const std::string& model, const EngineConfig& config = {});
  // For tests and for EngineCores with parts of one's own (src/engine/engine_core.h).
  explicit LLMEngine(std::unique_ptr<EngineCore> core);
  ~LLMEngine();
  LLMEngine(LLMEngine&&) noexcept;
  LLMEngine& operator=(LLMEngine&&) noexcept;

  // Queues a request and returns its id. Throws Error(kInvalidArgument) if it can never be served
  // (empty prompt, too long, ids outside the vocabulary, parameters out of range, more KV than
  // there is), or kUnsupported for texts (prompt, stop, bad_words) if the model has no tokenizer.
  // The engine and its other requests are not affected.
  //
  // previous_output_ids continues a request of another engine: for each completion, or for the
  // first few, the output ids that it already has. Generation goes on after them; with the same
  // params.seed it gives the tokens and the text that the other engine would have given. They count
  // for max_tokens. With kDelta they are not reported again, nor are the prompt's
  // log-probabilities; with the other kinds they are, and they and the prompt have no
  // log-probabilities. A completion that they already end is reported as finished by the next
  // step(). Throws Error(kInvalidArgument) if ids follow after an end.
  uint64_t add_request(Prompt prompt, const SamplingParams& params,
                       const std::vector<std::vector<int32_t>>& previous_output_ids = {});
  // The same of a request that this engine's preparer() has checked, on any thread, and that is not
  // checked again; one that was checked for another engine is. Its id is not used.
  uint64_t add_request(CheckedRequest request);
  // Ends a request now; its last output has finish_reason kAbort. Unknown ids are ignored.
  void abort_request(uint64_t request_id) noexcept;
  // Ends a request now without reporting it. Unknown ids are ignored.
  void discard_request(uint64_t request_id) noexcept;
  // The same, and returns its last output; none for unknown ids.
  std::optional<RequestOutput> finish_request(uint64_t request_id);
  // Computes one step and returns the requests that gained tokens or ended in it (with kFinalOnly,
  // those that ended): none if it computed only parts of prompts. Does nothing if there is no
  // work.
  //
  // Throws Error if a step fails on the device. No request is lost: the next step() computes again
  // what had not been reported; but ranks that share a model can't go on, and every later step()
  // throws. Throws std::bad_alloc if host memory is exhausted, which may abort the request
  // concerned, and Error(kInvalidArgument) while LLM::generate() runs.
  std::vector<RequestOutput> step();
  // Whether all requests have ended and been reported.
  bool is_finished() const;
  // What the last step() did.
  const StepStats& last_step() const;
  // The sequences that it computed, decodes first; empty if it computed nothing.
  const std::vector<ScheduledRequest>& last_schedule() const;
  // From now on nothing is said on stderr of what requests ask for, such as bad_words that can come
  // all the same: they are other people's, and may be private.
  void withhold_remarks();
  // Requests that are added from now on share nothing with those before. What runs or waits goes on
  // as it is.
  void reset_prefix_cache();
  // Writes a trace to this file from now on, in place of one that is being written, which is
  // completed first. Throws Error(kIo) if a file can't be created or completed, and
  // Error(kInvalidArgument) for a file of the model.
  void start_trace(const std::string& path);
  // Completes the trace, of EngineConfig::trace_file or start_trace(), and ends it. Throws
  // Error(kIo) if it could not be written; the destructor does the same but can only print that
  // sentence.
  void finish_trace();
  const EngineInfo& info() const;
  // The parameters a request should start from: the model's own (generation_config.json,
  // general.sampling.* of a GGUF file) over SamplingParams' defaults.
  const SamplingParams& default_sampling_params() const;
  // Text to ids and back with the model's tokenizer. Throws Error(kUnsupported) if it has none.
  std::vector<int32_t> encode(const std::string& text, bool add_special_tokens = true) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = true) const;
  // Makes requests for this engine, on any thread (nanovllm/prepare.h); valid while the engine and
  // the template live.
  RequestPreparer preparer(const ChatTemplate* chat_template = nullptr) const;
  // The seed that a request without its own would get if its id was request_id.
  int64_t seed_of(uint64_t request_id) const;

  // Steps an engine for LLM::generate(): while it lives, nobody else does, for step() throws.
  class Stepper {
   public:
    // Throws Error(kInvalidArgument) if the engine has one.
    explicit Stepper(LLMEngine& engine);
    ~Stepper();
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    // LLMEngine::step().
    std::vector<RequestOutput> step();

   private:
    LLMEngine& engine_;
  };

 private:
  std::vector<RequestOutput> run_step();

  std::unique_ptr<EngineCore> core_;
  bool has_stepper_ = false;
};

}  // namespace nanovllm
