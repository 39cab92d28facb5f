// What the engine tells the runner about one step, and what it hears back. Plain host data: no
// tensors, no devices.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

// One scheduled sequence: tokens [num_computed_tokens, num_computed_tokens + num_new_tokens) are
// computed, known ones first and drafts behind them.
struct SequenceInput {
  std::span<const int32_t> token_ids = {};  // all known tokens
  // Guesses at the tokens behind them. All are new in this step, which draws one token more than
  // they are, each as if the drafts before it were known; those behind a draft that proves wrong
  // are no tokens of the sequence. Only with `sample`, and never behind a pending token.
  std::span<const int32_t> draft_token_ids = {};
  int num_computed_tokens = 0;
  int num_new_tokens = 0;
  // The KV of positions below this is in shared blocks already and must not be written again
  // (slot -1). Above num_computed_tokens only where a fully cached prompt recomputes its last
  // token.
  int kv_write_begin = 0;
  std::span<const int32_t> block_table = {};  // blocks for all tokens up to computed + new
  bool sample = false;  // computed + new == known + drafts: draw what comes next
  // Of the first draw; each one behind it has the next position, one more of the drafts behind
  // output_ids, and an equal part of `allowed` of its own. Draws are numbered over the sequences of
  // a step, in order. pending_from >= 0: the last new token is the draw of this number of the step
  // submitted just before, and its id is not known here yet; token_ids ends before it. The runner
  // takes it from there and counts it for the penalties, as if it ended token_ids and output_ids.
  // If that draw had no distribution (id -1), the request is over and anything may be computed for
  // it.
  SamplingRow sampling = {};
  // Log-probabilities of the prompt: for each new token at position p with p + 1 in
  // [prompt_logprobs_begin, end), the log-probability of token p + 1. Empty range = none.
  int prompt_logprobs_begin = 0;
  int prompt_logprobs_end = 0;
  int32_t num_prompt_logprobs = -1;
};

// Parts of StepOutput::results.
struct SequenceOutput {
  // The tokens drawn, in order: none where `sample` was false, one without drafts, and with some of
  // them any number up to one more than they are. Its id is -1 where there was no distribution to
  // draw from.
  std::span<const SamplingResult> sampled;
  // One for each position asked for in this step, in order.
  std::span<const SamplingResult> prompt_logprobs;
};

struct StepInput {
  std::vector<SequenceInput> sequences;  // decodes first
  // Called when the forward pass is under way, before anything is sampled: until it returns, what
  // sampling.allowed shows may still be written. Ranks call it each on its own thread. Empty = it
  // is there already.
  std::function<void()> await_masks;
};

struct StepOutput {
  StepOutput() = default;
  StepOutput(StepOutput&&) = default;  // a copy's sequences would show the original's results
  StepOutput& operator=(StepOutput&&) = default;

  std::vector<SamplingResult> results;
  std::vector<SequenceOutput> sequences;  // in the input's order
};

}  // namespace nanovllm
