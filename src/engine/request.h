// One request: its completions, when each of them ends, and its outputs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bad_words.h"
#include "engine/constraint.h"
#include "engine/drafter.h"
#include "engine/observer.h"
#include "engine/sequence.h"
#include "engine/step_rows.h"
#include "engine/thinking_budget.h"
#include "nanovllm/llm_engine.h"
#include "runner/step.h"
#include "text/detokenizer.h"

namespace nanovllm {

class Request;

// A sequence and what of it goes into outputs.
struct Completion : Sequence {
  using Sequence::Sequence;

  uint64_t seed = 0;
  // Of a request with a thinking_token_budget, until a grammar's text begins.
  std::optional<ThinkingBudget> thinking;
  std::optional<Constraint> constraint;    // of a request with rules
  std::optional<Detokenizer> detokenizer;  // made at the first token that may have text
  std::optional<StopStringMatcher> stop_strings;
  // What was proposed when its step was submitted; draft_ids are a part of one of them.
  std::vector<DraftTokens> proposed;
  std::string text;
  size_t num_decoded_bytes = 0;  // of text, and of what is held back for a stop string
  std::vector<TokenMark> marks;  // in both
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  Phase phase = Phase::kNone;
  // Index of its draw in the last submitted step that drew for it (see
  // SequenceInput::pending_from).
  int draw_number = 0;

  // What earlier outputs of a kDelta request have held already.
  size_t num_delivered_tokens = 0;
  size_t num_delivered_bytes = 0;
};

// What is drawn after prompts, whatever the model says: outputs by prompt. Behind their ends, and
// after other prompts, the model is listened to.
using DictatedTexts = std::map<std::vector<int32_t>, std::vector<int32_t>>;

// What all requests of an engine have in common.
struct RequestContext {
  EngineLimits limits = {};
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> eos_token_ids = {};
  bool enable_prefix_caching = true;
  bool has_drafter = false;
  // See DraftingParts.
  double synthetic_acceptance = 0;
  const DictatedTexts* dictated = nullptr;  // null = none
  int64_t seed = 0;
  // When the present step was submitted or, later, when its result came.
  Clock::time_point now = {};
};

// The seed of a request that has none.
int64_t default_seed(int64_t engine_seed, uint64_t request_id);

class Request {
 public:
  // `context` outlives the request. `rules` are those of its grammar and its allowed_token_ids,
  // null where it has neither. `cache_salt` is the number of the parameters' salt (CacheSalts).
  Request(uint64_t id, std::string prompt, std::vector<int32_t> prompt_token_ids,
          SamplingParams params, const RequestContext& context,
          std::shared_ptr<const ConstraintRules> rules = nullptr, uint64_t cache_salt = 0);

  const SamplingParams& params() const { return params_; }

  // Appends output ids that another engine generated and counts them as delivered. Throws
  // Error(kInvalidArgument) if these parameters could not have given them.
  void replay(const std::vector<std::vector<int32_t>>& previous_output_ids);

  uint64_t id() const { return id_; }
  const std::vector<std::unique_ptr<Completion>>& completions() const { return completions_; }
  bool is_finished() const { return num_unfinished_ == 0; }

  // To be called when a completion is computed for the first time.
  void note_first_step() noexcept;
  // Fills in what the forward pass of a scheduled completion needs. `input` points into both the
  // request and the completion.
  void fill_input(const Completion& completion, int num_new_tokens, SequenceInput& input) const;
  // Whether the row of its next draw depends on the ids of the tokens before it, if the last
  // num_pending of them are not known.
  bool needs_ids(const Completion& completion, int num_pending) const;
  // What a model that guesses its next tokens draws with, but for the position.
  SamplingRow guess_row(const Completion& completion) const;
  // Cuts a draft before its first token that can't be drawn.
  void cut_draft(const Completion& completion, std::vector<int32_t>& ids) const;
  // Adds the rows of a completion's draws, which point into both as well. Token `position`, the
  // prompt's included, is drawn first, and one more behind each of its first num_drafts drafts;
  // pending_from is SamplingRow's.
  void add_rows(const Completion& completion, int position, int num_drafts, int pending_from,
                StepRows& rows) const;
  // Appends what a step gave: log-probabilities of the prompt and, if `sampled`, tokens. Tokens
  // after one that ends the completion are dropped. If it throws, the completion can't go on.
  void append_output(Completion& completion, bool sampled, const SequenceOutput& output);
  // Ends a completion with all text that can be decoded. No effect on one that has ended.
  void abort(Completion& completion) noexcept;
  // Sets the stop reason of aborted completions that have none.
  void give_reason(const char* reason);

  // The next output of the kind that was asked for; none if kFinalOnly is not finished.
  std::optional<RequestOutput> output() const;
  // To be called when that output was delivered: the next one of kind kDelta begins after it.
  void mark_delivered() noexcept;

  // Set and read by EngineCore. Completions 1 to n - 1 wait until completion 0 has computed the
  // prompt, to share its blocks; then they are released.
  bool siblings_released = false;
  // Since the last output.
  bool changed = false;

 private:
  int32_t forced_id(const SamplingRow& row, std::span<const int32_t> drafts) const;
  void append_token(Completion& completion, const SamplingResult& sampled);
  bool stops_at(Completion& completion, int32_t token_id) const;
  void walk(Completion& completion, int32_t token_id);
  bool is_stuck(const Completion& completion) const;
  bool has_empty_mask(const Completion& completion) const;
  void end_stuck(Completion& completion);
  void detokenize(Completion& completion, int32_t token_id, bool at_stop_token);
  void append_text(Completion& completion, const std::string& piece);
  void end(Completion& completion, FinishReason reason);
  void abort(Completion& completion, std::string why);
  void set_finished(Completion& completion, FinishReason reason) noexcept;
  PositionLogprobs position_logprobs(const SamplingResult& result) const;
  CompletionOutput completion_output(const Completion& completion) const;
  double seconds_until(Clock::time_point time) const noexcept;

  const uint64_t id_;
  std::string prompt_;
  const SamplingParams params_;
  const RequestContext& context_;
  SamplingRow row_;  // the fields that are the same for every token
  int num_prompt_logprobs_ = -1;
  std::vector<std::pair<int32_t, float>> logit_bias_;
  std::vector<int32_t> stop_ids_;  // EOS and stop_token_ids: banned before min_tokens
  std::shared_ptr<const ConstraintRules> rules_;
  BadWords bad_words_;
  std::span<const int32_t> dictated_;
  std::vector<std::unique_ptr<Completion>> completions_;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs_;
  bool prompt_delivered_ = false;
  int num_unfinished_ = 0;
  Clock::time_point added_at_, last_token_at_;
  RequestMetrics metrics_;
};

inline Completion& completion_of(const Sequence& sequence) {
  return *sequence.request->completions()[sequence.index];
}

}  // namespace nanovllm
