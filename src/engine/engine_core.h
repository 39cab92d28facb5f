// The engine behind LLMEngine, without a model: takes requests, gives steps to a runner, returns
// outputs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/block_manager.h"
#include "engine/cache_salts.h"
#include "engine/drafting.h"
#include "engine/in_flight_step.h"
#include "engine/observer.h"
#include "engine/remarks.h"
#include "engine/scheduler.h"
#include "nanovllm/llm_engine.h"
#include "nanovllm/prepare.h"
#include "runner/runner.h"

namespace nanovllm {

// What an engine is made of.
struct EngineParts {
  EngineConfig config;
  // max_model_len and vocab_size must be filled in; the core fills in the other EngineLimits.
  EngineInfo info;
  // For messages: the model's folder or GGUF file.
  std::string model_dir;
  std::unique_ptr<Runner> runner;
  // Null = none: token ids only.
  std::unique_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> eos_token_ids;
  SamplingParams default_sampling_params;
  std::vector<std::unique_ptr<EngineObserver>> observers;
  // Speculative decoding: outputs are the same with it or without. With it, a sequence is in no
  // step before its last one is collected.
  DraftingParts drafting;
  // For benchmarks; null = none. May be filled in until requests are added.
  std::shared_ptr<const DictatedTexts> dictated;
};

// See LLMEngine, whose methods these are. If Runner::max_in_flight() is 2, a step is scheduled and
// submitted while another one runs, and drawn at once unless a row depends on the ids that the
// other one draws: then when that is collected. Outputs do not depend on it. Not thread-safe.
class EngineCore {
 public:
  explicit EngineCore(EngineParts parts);
  ~EngineCore();

  uint64_t add_request(Prompt prompt, const SamplingParams& params,
                       const std::vector<std::vector<int32_t>>& previous_output_ids = {});
  // `text` is what RequestOutput::prompt says.
  uint64_t add_request(CheckedRequest checked, std::string text = "");
  void abort_request(uint64_t request_id) noexcept;
  // Ends a request now without reporting it.
  void discard_request(uint64_t request_id) noexcept;
  // The same, and returns its last output; none for unknown ids.
  std::optional<RequestOutput> finish_request(uint64_t request_id);
  // If scheduling, computing or processing a step throws, the steps in flight are abandoned, all
  // running requests go back to the queue and the error is passed on. If it throws std::bad_alloc
  // while a request gets its tokens, that request is aborted. A request whose text can't be decoded
  // is aborted without an error.
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
  void withhold_remarks() { withholds_remarks_ = true; }
  void reset_prefix_cache() { salts_.forget(); }
  void start_trace(const std::string& path);
  void finish_trace();
  // The seed that a request without its own would get if its id was request_id.
  int64_t seed_of(uint64_t request_id) const { return default_seed(context_.seed, request_id); }

  // See BlockManager::check_integrity.
  std::string check_integrity() const;

 private:
  bool submit_step();
  void draw(InFlightStep& step);
  bool collect_step();
  void update_from_output(const InFlightStep::Entry& entry, const SequenceOutput& output);
  void take_tokens(const InFlightStep::Entry& entry, const SequenceOutput& output);
  void count_drafts(const InFlightStep::Entry& entry, size_t num_accepted);
  // Returns whether its blocks hold the whole prompt now.
  bool register_computed(const InFlightStep::Entry& entry);
  // Ends it, lets it decode, or lets the other completions of its prompt begin.
  void move_on(const InFlightStep::Entry& entry, bool prompt_computed);
  void release_siblings(Request& request);
  void give_up(Request& request) noexcept;      // ends it as aborted, to be reported
  void end_request(Request& request) noexcept;  // aborts what has not ended
  void recover() noexcept;                      // after an exception: no step is in flight
  void mark_changed(Request& request) noexcept;
  void erase(Request& request) noexcept;  // it was reported, or nobody wants to know
  std::vector<RequestOutput> take_outputs();
  void report(const InFlightStep& step);
  void learn_cost();  // from the last step
  void enter_phase(Completion& completion, Phase phase) noexcept;
  void remark_on(const Request& request, const Grammar* grammar);

  EngineParts parts_;
  const std::unique_ptr<const GrammarCompiler> grammars_;  // null: no tokenizer
  const RequestPreparer preparer_;                         // with parts_.info
  BlockManager blocks_;
  Scheduler scheduler_;
  RequestContext context_;
  CacheSalts salts_;
  std::optional<Drafting> drafting_;
  ConstraintTable constraints_;
  bool withholds_remarks_ = false;
  Remarks remarks_;

  Requests requests_;  // until their last output was delivered
  uint64_t next_request_id_ = 0;
  std::deque<InFlightStep> in_flight_;      // oldest first
  std::vector<Request*> changed_;           // capacity for all requests, so that it never allocates
  StepInput input_;                         // reused, to keep its memory
  StepRows rows_;                           // likewise
  StepStats counts_;                        // since the last reported step
  std::optional<StepCostLearner> learner_;  // where steps are bounded and their cost is a guess

  StepStats last_step_;
  std::vector<ScheduledRequest> last_schedule_;
  Clock::time_point last_collected_at_;
};

}  // namespace nanovllm
