// One completion of one prompt, as the scheduler and the block manager see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runner/step.h"

namespace nanovllm {

enum class SequenceStatus {
  kNew,      // in no queue: not added yet, or waits until completion 0 has computed the prompt
  kWaiting,  // holds no blocks
  kRunning,  // holds blocks; is in every step that has room for it
  kFinished,
};

// How far a sequence is registered in the prefix cache: its full blocks that are there, and the
// node of the TextChain that the last of them is; -1 = none.
struct PrefixChain {
  int num_blocks = 0;
  int node = -1;
};

class Request;
struct Sequence;

// Whether `a` is served before `b`: gets blocks and tokens first, and keeps its blocks longer. A
// strict total order, which never changes for two sequences.
using SchedulingPolicy = bool (*)(const Sequence* a, const Sequence* b);
using SequenceQueue = std::set<Sequence*, SchedulingPolicy>;

struct Sequence {
  // max_num_tokens bounds prompt and output together.
  Sequence(uint64_t request_id_, int index_, std::vector<int32_t> prompt_token_ids,
           int max_num_tokens_)
      : request_id(request_id_),
        index(index_),
        token_ids(std::move(prompt_token_ids)),
        num_prompt_tokens(static_cast<int>(token_ids.size())),
        max_num_tokens(max_num_tokens_) {}
  // Another completion of the prompt of `first`, which must live longer. It has a copy of the
  // prompt's ids only while it holds_prompt, so that n completions of a long prompt need not be in
  // memory at the same time.
  Sequence(const Sequence& first, int index_)
      : request_id(first.request_id),
        index(index_),
        num_prompt_tokens(first.num_prompt_tokens),
        max_num_tokens(first.max_num_tokens),
        prompt_of(&first),
        holds_prompt(false) {}

  // Whose completion it is. The scheduler does not use it.
  Request* request = nullptr;
  const uint64_t request_id;
  // Which of the request's n completions.
  const int index;
  // The prompt, if it holds it, then the output, as far as the ids are known.
  std::vector<int32_t> token_ids;
  const int num_prompt_tokens;
  const int max_num_tokens;
  // Whose prompt it has; null = its own, which it always holds.
  const Sequence* const prompt_of = nullptr;
  bool holds_prompt = true;
  // Lower is served first, if the policy looks at it.
  int priority = 0;
  SequenceStatus status = SequenceStatus::kNew;
  // Tokens that steps in flight draw: they count, but their ids are not known yet.
  int num_pending_tokens = 0;
  // true: it is not scheduled again before its last step is collected, for that draws a number of
  // tokens that is not known in advance (drafts).
  bool awaits_ids = false;
  // Tokens whose KV is stored, or will be by the steps in flight.
  int num_computed_tokens = 0;
  // Prompt tokens that it did not have to compute when it first ran.
  int num_cached_tokens = 0;
  int num_preemptions = 0;
  // [blocks, groups]: where each group of layers has the KV of each block of tokens; -1 = it has
  // none there.
  std::vector<int32_t> block_table;
  // Rows for whose tokens groups with a window have, or had, blocks.
  int num_window_rows = 0;
  // Tokens whose KV is there to stay. Groups with a window have given back what no later one sees.
  int num_settled_tokens = 0;
  // Of a model with recurrent layers, while it runs (StatePool).
  StateSlots states;
  // Tokens that the state in states.next has taken in, which is there until a step overwrites it;
  // 0 = it is of no use.
  int len_of_next = 0;
  // The last boundary up to which its text was known when it was let in, where that is behind the
  // last one whose state was kept; 0 = it is not.
  int num_known_elsewhere = 0;
  // Where it went on from a cached text, if others had gone on from there before; else 0.
  int num_taken_by_others = 0;

  // What it may share. Tokens after the first num_cacheable_tokens are neither looked up in the
  // prefix cache nor registered there. Only sequences with the same salt share: the number of the
  // request's own (CacheSalts), or one of Request's that lets completions share their prompt with
  // each other alone where prefix caching is off.
  int num_cacheable_tokens = 0;
  bool reads_prefix_cache = true;
  uint64_t cache_salt = 0;
  PrefixChain chain;
  // The request's own, whether or not there is a prefix cache: who may see what it says.
  uint64_t salt = 0;

  // Speculative decoding: guesses of the tokens that follow, computed and verified in one step.
  // Present from scheduling until the step is collected, and only if it awaits_ids.
  std::vector<int32_t> draft_ids;

  // Its place in the waiting queue, kept while it runs, so that preemption never allocates.
  SequenceQueue::node_type queue_node;

  int num_tokens() const { return num_prompt_tokens + num_output_tokens(); }
  int num_output_tokens() const { return static_cast<int>(output().size()) + num_pending_tokens; }
  // Drafts included. 0 once the last token that it may have is drawn: that one is never fed back.
  int num_uncomputed_tokens() const {
    if (num_tokens() >= max_num_tokens) return 0;
    if (!awaits_ids) return num_tokens() - num_computed_tokens;
    if (num_pending_tokens > 0) return 0;
    return num_tokens() + static_cast<int>(draft_ids.size()) - num_computed_tokens;
  }
  // It has been given a token and will get another with each step that it is in, or, where it
  // awaits_ids, with the one after.
  bool decodes() const {
    return num_output_tokens() > 0 && num_tokens() < max_num_tokens &&
           num_tokens() - num_computed_tokens <= 1;
  }
  std::span<const int32_t> prompt() const {
    if (prompt_of != nullptr) return prompt_of->prompt();
    return {token_ids.data(), static_cast<size_t>(num_prompt_tokens)};
  }
  std::span<const int32_t> output() const {
    return std::span(token_ids).subspan(holds_prompt ? num_prompt_tokens : 0);
  }

  // To be called when its step was collected; num_known = its tokens when the step was submitted.
  // Removes the drafts and returns how many tokens have valid KV: the known ones and the drafts
  // that were drawn, up to the first difference; but never the last token, which the next step
  // computes.
  int resolve_drafts(int num_known) {
    const auto drawn = std::span(token_ids).subspan(num_known);
    const auto differs = std::ranges::mismatch(drawn, draft_ids).in1;
    draft_ids.clear();
    return std::min(num_known + static_cast<int>(differs - drawn.begin()), num_tokens() - 1);
  }

  // To be called before it is computed or looked up in the cache.
  void hold_prompt() {
    if (holds_prompt) return;
    token_ids.insert(token_ids.begin(), prompt().begin(), prompt().end());
    holds_prompt = true;
  }
  void drop_prompt() noexcept {
    if (prompt_of == nullptr || !holds_prompt) return;
    token_ids.erase(token_ids.begin(), token_ids.begin() + num_prompt_tokens);
    token_ids.shrink_to_fit();
    holds_prompt = false;
  }
};

}  // namespace nanovllm
