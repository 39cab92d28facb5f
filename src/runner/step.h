// What the engine gives to a runner for one step, and what it gets back. Plain host data: no
// tensors, no devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

// Where the states of a sequence are, in models with recurrent layers; see ForwardBatch.
struct StateSlots {
  int32_t slot = -1;
  int32_t len = 0;
  int32_t next = -1;
  int32_t log = -1;
  bool operator==(const StateSlots&) const = default;
};

// One scheduled sequence. The step computes its tokens [num_computed_tokens, num_computed_tokens +
// num_new_tokens): known ones first, then possibly a pending one or drafts.
struct SequenceInput {
  // All tokens whose ids are known.
  std::span<const int32_t> token_ids = {};
  // Speculative decoding: guesses of the tokens that follow, all computed by this step. With k of
  // them the step draws k + 1 tokens; draw i assumes that drafts 0 .. i-1 are right, and so does
  // its row. Draws after the first wrong draft are dropped. Only with `sample`, and never after a
  // pending token.
  std::span<const int32_t> draft_token_ids = {};
  int num_computed_tokens = 0;
  int num_new_tokens = 0;
  // Positions below this already have their KV in blocks that others may share: it must not be
  // written again (their slot is -1). Larger than num_computed_tokens only if a prompt is cached
  // completely and its last token is computed again.
  int kv_write_begin = 0;
  // [blocks, groups]: of all tokens up to num_computed_tokens + num_new_tokens, the blocks in which
  // each group of layers (Runner::kv_windows) has their KV; -1 where no new token sees them.
  std::span<const int32_t> block_table = {};
  StateSlots states = {};
  // Draw what follows. Only if this step computes all that is known: num_computed_tokens +
  // num_new_tokens == token_ids.size() + draft_token_ids.size() (+ 1 with a pending token).
  bool sample = false;
  // The draws of a step are numbered over all its sequences, in order. >= 0: the last new token is
  // pending, that is, it is draw number pending_from of the step submitted just before, and the
  // host does not know its id. token_ids ends before it; the runner takes it from there. If that
  // draw had no distribution (id -1), the request is over and anything may be computed for it.
  //
  // Where the step before was collected before draw(), the row of the draw may know the id all the
  // same (SamplingRow::pending_from).
  int32_t pending_from = -1;
  // Log-probabilities of the prompt: for each new token at a position p with p + 1 in
  // [prompt_logprobs_begin, prompt_logprobs_end), that of token p + 1. Empty range = none.
  int prompt_logprobs_begin = 0;
  int prompt_logprobs_end = 0;
  int32_t num_prompt_logprobs = -1;
};

// Views into StepOutput::results.
struct SequenceOutput {
  // The tokens drawn, in order. Without `sample` there are none, without drafts there is one, with
  // k drafts there are 1 to k + 1. An id of -1 means that the logits left nothing to draw from.
  std::span<const SamplingResult> sampled;
  // One for each position asked for in this step, in order.
  std::span<const SamplingResult> prompt_logprobs;
};

struct StepInput {
  // Those that decode come first.
  std::vector<SequenceInput> sequences;
};

struct StepOutput {
  StepOutput() = default;
  // Not copied: the sequences of a copy would point to the results of the original.
  StepOutput(StepOutput&&) = default;
  StepOutput& operator=(StepOutput&&) = default;

  std::vector<SamplingResult> results;
  // In the input's order.
  std::vector<SequenceOutput> sequences;
};

}  // namespace nanovllm
