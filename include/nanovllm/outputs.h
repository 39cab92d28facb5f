// What a request gives back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nanovllm {

// One candidate token of a position. rank 1 = most likely. Log-probabilities are those of the
// model's raw logits (natural logarithm, before temperature, penalties and biases), as vLLM reports
// them.
struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
  int rank = 0;
  std::optional<std::string> decoded_token;  // where the model has a tokenizer
  bool operator==(const TokenLogprob&) const = default;
};

// The chosen (or prompt) token first, then the most likely ones in order; the chosen one is not
// repeated.
using PositionLogprobs = std::vector<TokenLogprob>;

enum class FinishReason { kNone, kStop, kLength, kAbort };

// "stop", "length", "abort"; empty for kNone.
const char* to_string(FinishReason reason);

// The stop token or the stop text that ended a completion, or why the engine aborted it (logits
// that hold NaN, a token that can't be decoded); nothing for length, abort_request and the
// tokenizer's EOS, while other EOS ids count as stop tokens. As in vLLM, but for the aborts.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

struct CompletionOutput {
  int index = 0;                           // 0 .. n-1
  std::string text;                        // everything generated so far that is certain
  std::vector<int32_t> token_ids;          // everything generated so far
  std::vector<PositionLogprobs> logprobs;  // one entry a token, where asked for
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

// Seconds since the request was added, whichever of its completions came so far; 0: none did.
struct RequestMetrics {
  double time_to_first_step = 0;
  double time_to_first_token = 0;
  double time_to_last_token = 0;  // when a completion ended last
  double time_to_finish = 0;
  // The intervals of vLLM's metrics, preemptions included.
  double queue_time() const { return time_to_first_step; }
  double prefill_time() const { return std::max(0.0, time_to_first_token - time_to_first_step); }
  double decode_time() const { return time_to_last_token - time_to_first_token; }
  double inference_time() const { return prefill_time() + decode_time(); }
  bool operator==(const RequestMetrics&) const = default;
};

struct RequestOutput {
  uint64_t request_id = 0;
  std::string prompt;  // empty when the prompt came as token ids
  std::vector<int32_t> prompt_token_ids;
  std::vector<std::optional<PositionLogprobs>>
      prompt_logprobs;                    // where asked for; none for the first token
  std::vector<CompletionOutput> outputs;  // n of them
  bool finished = false;
  int num_cached_tokens = 0;  // prompt tokens whose KV came from the prefix cache
  int num_preemptions = 0;
  RequestMetrics metrics;
};

}  // namespace nanovllm
