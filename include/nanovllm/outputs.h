// What a request gives back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nanovllm {

// One candidate token of a position. Log-probabilities are those of the model's raw logits (natural
// logarithm, before temperature, penalties and biases), as vLLM reports them.
struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  // 1 = the most likely token of its position.
  int rank = 0;
  // None if the model has no tokenizer.
  std::optional<std::string> decoded_token;
  bool operator==(const TokenLogprob&) const = default;
};

// The chosen token (or the prompt's) comes first, then the N most likely ones in order, without the
// chosen one: N entries if it is one of them, else N + 1.
using PositionLogprobs = std::vector<TokenLogprob>;

enum class FinishReason { kNone, kStop, kLength, kAbort };

// "stop", "length", "abort"; empty for kNone.
const char* to_string(FinishReason reason);

// int32_t: the id of the stop token, or of an EOS token that is not the tokenizer's own, that ended
// the completion. std::string: the stop text that ended it; or, if the engine aborted it, the
// reason (logits that hold NaN, a token that can't be decoded). Empty in all other cases. As in
// vLLM, except for the reasons of aborts.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// Where in a text that of a token of SamplingParams::marked_token_ids begins. Its end may still be
// held back.
struct TokenMark {
  size_t offset = 0;  // bytes
  int32_t token_id = 0;
  bool operator==(const TokenMark&) const = default;
};

// Text, marks, ids and log-probabilities are everything generated so far or, with kDelta, what is
// new.
struct CompletionOutput {
  // 0 .. n-1
  int index = 0;
  // Without an end that later tokens could still change: half a character, or what may become a
  // stop text.
  std::string text;
  // In order.
  std::vector<TokenMark> marks;
  std::vector<int32_t> token_ids;
  // One entry per token, if asked for.
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

// Seconds from add_request() to an event; 0 = it has not happened yet. Final when the request has
// finished.
struct RequestMetrics {
  // The first step that computes any of the completions.
  double time_to_first_step = 0;
  // The first token of any of the completions.
  double time_to_first_token = 0;
  // The newest token of the request at the moment when a completion ended last.
  double time_to_last_token = 0;
  // All completions have ended.
  double time_to_finish = 0;
  // The intervals of vLLM's metrics, preemptions included. Valid when the request has finished.
  double queue_time() const { return time_to_first_step; }
  double prefill_time() const { return std::max(0.0, time_to_first_token - time_to_first_step); }
  double decode_time() const { return time_to_last_token - time_to_first_token; }
  double inference_time() const { return prefill_time() + decode_time(); }
  bool operator==(const RequestMetrics&) const = default;
};

struct RequestOutput {
  uint64_t request_id = 0;
  // Empty if the prompt came as token ids.
  std::string prompt;
  std::vector<int32_t> prompt_token_ids;
  // One entry per token of the prompt, if asked for; the first token has none.
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;
  // All n of them, whatever output_kind is.
  std::vector<CompletionOutput> outputs;
  bool finished = false;
  // Tokens of the prompt whose KV came from the prefix cache when completion 0 began.
  int num_cached_tokens = 0;
  // Of all completions together.
  int num_preemptions = 0;
  RequestMetrics metrics;
};

}  // namespace nanovllm
