// One request: its completions, when each of them ends, and its outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bad_words.h"
#include "engine/observer.h"
#include "engine/sequence.h"
#include "nanovllm/llm_engine.h"
#include "runner/step.h"
#include "text/detokenizer.h"

namespace nanovllm {

class Request;

// A sequence with what its user sees of it.
struct Completion : Sequence {
  using Sequence::Sequence;

  uint64_t seed = 0;
  std::optional<Detokenizer> detokenizer;  // from the first token with text on
  std::optional<StopStringMatcher> stop_strings;
  std::string text;
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  Phase phase = Phase::kNone;
  int draw_number = 0;              // its number in the last step submitted that samples it
  std::vector<int32_t> banned_ids;  // in that step, where bad words were asked for

  // What earlier outputs of a kDelta request have held already.
  size_t num_delivered_tokens = 0;
  size_t num_delivered_bytes = 0;
};

// What all requests of an engine have in common.
struct RequestContext {
  EngineLimits limits = {};
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> eos_token_ids = {};
  bool enable_prefix_caching = true;
  bool has_drafter = false;
  uint64_t seed = 0;
  Clock::time_point now = {};  // when the present step began, or its result came
};

// Where a request has no seed of its own.
uint64_t default_seed(uint64_t engine_seed, uint64_t request_id);

class Request {
 public:
  // `context` outlives the request.
  Request(uint64_t id, std::string prompt, std::vector<int32_t> prompt_token_ids,
          const SamplingParams& params, const RequestContext& context);

  // Takes what its completions are said to have generated before, and counts it as delivered.
  // Throws Error(kInvalidArgument) where it is nothing they could have.
  void replay(const std::vector<std::vector<int32_t>>& previous_output_ids);

  uint64_t id() const { return id_; }
  const std::vector<std::unique_ptr<Completion>>& completions() const { return completions_; }
  bool is_finished() const { return num_unfinished_ == 0; }

  // A step computes one of its completions.
  void begin_step() noexcept;
  // How many drafts a completion may have: each draw is banned the same tokens.
  int max_drafts(const Completion& completion) const;
  // What the runner is told of a scheduled completion. Valid while neither changes.
  void fill_input(Completion& completion, int num_new_tokens, SequenceInput& input) const;
  // Takes what a step gave the completion: log-probabilities of the prompt and, where it sampled,
  // tokens, of which one may end it: those behind are dropped. When it throws, the completion can't
  // go on.
  void append_output(Completion& completion, bool sampled, const SequenceOutput& output);
  // Ends a completion that has not ended, with all of its text that can be decoded.
  void abort(Completion& completion) noexcept;
  // Why its completions were aborted, where they have no reason yet.
  void give_reason(const char* reason);

  // The next output of the kind that was asked for, or none when there is nothing to show.
  std::optional<RequestOutput> output() const;
  // The output was delivered: the next one of kind kDelta begins behind it.
  void mark_delivered() noexcept;

  // Kept by the engine. The other completions wait until the first one's prompt is computed, to
  // share its blocks.
  bool siblings_released = false;
  bool changed = false;  // since the last output

 private:
  void append_token(Completion& completion, const SamplingResult& sampled);
  bool stops_at(Completion& completion, int32_t token_id) const;
  void detokenize(Completion& completion, int32_t token_id, bool at_stop_token);
  void append_text(Completion& completion, const std::string& piece);
  void end(Completion& completion, FinishReason reason);
  void set_finished(Completion& completion, FinishReason reason) noexcept;
  PositionLogprobs position_logprobs(const SamplingResult& result) const;
  CompletionOutput completion_output(const Completion& completion) const;
  double seconds_until(Clock::time_point time) const noexcept;

  const uint64_t id_;
  std::string prompt_;
  const SamplingParams params_;
  const RequestContext& context_;
  SamplingRow row_;  // what is the same for every token
  int num_prompt_logprobs_ = -1;
  std::vector<std::pair<int32_t, float>> logit_bias_;
  std::vector<int32_t> stop_ids_;  // EOS and stop_token_ids: banned before min_tokens
  BadWords bad_words_;
  std::vector<std::unique_ptr<Completion>> completions_;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs_;
  bool prompt_delivered_ = false;
  int num_unfinished_ = 0;
  Clock::time_point added_at_, last_token_at_;
  RequestMetrics metrics_;
};

}  // namespace nanovllm
