// What the engine tells the runner about one step, and what it hears back. Plain host data: no
// tensors, no devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

// One scheduled sequence: tokens [num_computed_tokens, num_computed_tokens + num_new_tokens) are
// computed.
struct SequenceInput {
  std::span<const int32_t> token_ids = {};  // all known tokens
  int num_computed_tokens = 0;
  int num_new_tokens = 0;
  // >= 0: the last new token was sampled by the step submitted just before, for its sequence of
  // this index, and its id is not known here yet; token_ids ends before it. The runner takes it
  // from there and counts it for the penalties, as if it ended token_ids and sampling.output_ids.
  // If that row had no distribution (id -1), the request is over and anything may be computed for
  // it.
  int pending_from = -1;
  // The KV of positions below this is in shared blocks already and must not be written again
  // (slot -1). Above num_computed_tokens only where a fully cached prompt recomputes its last
  // token.
  int num_stored_tokens = 0;
  std::span<const int32_t> block_table = {};  // blocks for all tokens up to computed + new
  bool sample = false;  // computed + new == total: draw the next token with `sampling`
  SamplingRow sampling = {};
  // Log-probabilities of the prompt: for each new token at position p with p + 1 in
  // [prompt_logprobs_begin, end), the log-probability of token p + 1. Empty range = none.
  int prompt_logprobs_begin = 0;
  int prompt_logprobs_end = 0;
  int32_t num_prompt_logprobs = -1;
};

struct SequenceOutput {
  SamplingResult sampled;  // token_id -1 where `sample` was false or there was no distribution
  std::vector<SamplingResult>
      prompt_logprobs;  // one for each position asked for in this step, in order
};

struct StepInput {
  std::vector<SequenceInput> sequences;  // decodes first
};

struct StepOutput {
  std::vector<SequenceOutput> sequences;  // same order
};

}  // namespace nanovllm
