// The engine without a model: requests in, steps to a runner, outputs out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/block_manager.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "engine/request_check.h"
#include "engine/scheduler.h"
#include "nanovllm/llm_engine.h"
#include "runner/runner.h"

namespace nanovllm {

// What an engine is made of.
struct EngineParts {
  EngineConfig config;
  EngineInfo info;  // max_model_len and vocab_size; the core adds the other limits
  std::string model_dir;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<const Tokenizer> tokenizer;  // null = none: token ids only
  std::vector<int32_t> eos_token_ids;
  SamplingParams default_sampling_params;
  std::vector<std::unique_ptr<EngineObserver>> observers;
  // Guesses what comes behind a sequence's tokens, at most so many; what requests get does not
  // depend on it. Empty = none, and steps run ahead.
  std::function<std::vector<int32_t>(const Sequence&, int)> drafter;
};

// See LLMEngine, whose methods these are. Where the runner takes two steps, one is scheduled and
// submitted while another runs; what a request gets does not depend on that.
class EngineCore {
 public:
  explicit EngineCore(EngineParts parts);
  ~EngineCore();

  uint64_t add_request(const Prompt& prompt, const SamplingParams& params,
                       const std::vector<std::vector<int32_t>>& previous_output_ids = {});
  void abort_request(uint64_t request_id) noexcept;
  // Ends a request now and forgets it.
  void discard_request(uint64_t request_id) noexcept;
  // The same, but returns its last output; none for unknown ids.
  std::optional<RequestOutput> finish_request(uint64_t request_id);
  // When scheduling, computing or taking over a step throws, the steps in flight are abandoned, all
  // running requests go back to the queue and the error is passed on. A request that there is no
  // memory for ends as if it was aborted; one whose text can't be decoded does so alone.
  std::vector<RequestOutput> step();
  bool is_finished() const { return requests_.empty(); }

  const StepStats& last_step() const { return last_step_; }
  const std::vector<ScheduledRequest>& last_schedule() const { return last_schedule_; }
  const EngineInfo& info() const { return preparer_.info; }
  const SamplingParams& default_sampling_params() const { return parts_.default_sampling_params; }
  // For requests to this engine, as long as it lives.
  const RequestPreparer& preparer() const { return preparer_; }
  // Throws Error(kUnsupported) when there is none.
  const Tokenizer& tokenizer() const;
  void finish_trace() const;
  // Of a request without one, if that was its id.
  uint64_t seed_of(uint64_t request_id) const { return default_seed(context_.seed, request_id); }

  // Empty, or what is wrong with the books of blocks.
  std::string check_integrity() const;

 private:
  // A map, whose nodes move to another one without any memory to be found.
  using Requests = std::map<uint64_t, std::unique_ptr<Request>>;

  // What a submitted step needs to be collected.
  struct InFlightStep {
    struct Entry {
      Completion* completion;
      int num_computed_tokens;  // before the step
      int num_new_tokens;
      int num_drafts;       // of them
      int num_preemptions;  // of the sequence then; its blocks are others when it has more now
      bool sampled;

      // Whether it computes the token drawn last, not a prompt.
      bool is_decode() const {
        return sampled && num_new_tokens - num_drafts == 1 &&
               num_computed_tokens >= completion->num_prompt_tokens;
      }
    };
    std::vector<Entry> entries;
    Clock::time_point submitted_at;
    int num_running = 0, num_waiting = 0, num_used_blocks = 0;  // then
    Requests ended;  // not needed once this step is collected
  };

  void propose_drafts(Completion& completion);
  bool submit_step();
  bool collect_step();
  void update_or_give_up(const InFlightStep::Entry& entry, const SequenceOutput& output);
  void update_from_output(const InFlightStep::Entry& entry, const SequenceOutput& output);
  void release_siblings(Request& request);
  void give_up(Request& request) noexcept;
  void end_request(Request& request) noexcept;
  void recover() noexcept;
  void mark_changed(Request& request) noexcept;
  void erase(Request& request) noexcept;
  std::vector<RequestOutput> take_outputs();
  void report(const InFlightStep& step);
  void enter_phase(Completion& completion, Phase phase) noexcept;

  EngineParts parts_;
  const RequestPreparer preparer_;  // with parts_.info
  BlockManager blocks_;
  Scheduler scheduler_;
  RequestContext context_;

  Requests requests_;  // until their last output
  uint64_t next_request_id_ = 0;
  std::deque<InFlightStep> in_flight_;  // oldest first
  std::vector<Request*> changed_;       // has room for all
  StepInput input_;                     // kept for its memory
  StepStats counts_;                    // since the last step that was told

  StepStats last_step_;
  std::vector<ScheduledRequest> last_schedule_;
  Clock::time_point last_collected_at_;
};

}  // namespace nanovllm
