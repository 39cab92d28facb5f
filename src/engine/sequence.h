// One completion of one prompt, as the scheduler and the block manager see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace nanovllm {

enum class SequenceStatus {
  kNew,      // in no queue: not added yet, or a completion that waits for its prompt's first one
  kWaiting,  // holds no blocks
  kRunning,  // holds blocks; part of every step that has room
  kFinished,
};

// The cached content that a sequence's next full block continues (see BlockManager).
struct PrefixChain {
  int num_blocks = 0;       // full blocks of the sequence that are in the cache
  uint64_t hash = 0;        // of the last of them
  uint64_t content_id = 0;  // of the last of them; 0 = the beginning of a text
};

class Request;
struct Sequence;

// Whether `a` is served before `b`: gets its blocks and its tokens first, and keeps them longer.
// Orders all sequences, always alike.
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
  // Another completion of the prompt of `first`, which outlives it. It has a copy of the prompt's
  // ids only while it holds_prompt: n completions of a long prompt need not fit into memory at
  // once.
  Sequence(const Sequence& first, int index_)
      : request_id(first.request_id),
        index(index_),
        num_prompt_tokens(first.num_prompt_tokens),
        max_num_tokens(first.max_num_tokens),
        prompt_of(&first),
        holds_prompt(false) {}

  Request* request = nullptr;  // whose completion it is; what schedules it need not know
  const uint64_t request_id;
  const int index;                 // which of the request's n completions
  std::vector<int32_t> token_ids;  // prompt if held, then output, as far as the ids are known
  const int num_prompt_tokens;
  const int max_num_tokens;
  const Sequence* const prompt_of = nullptr;  // null = it has its own and always holds it
  bool holds_prompt = true;
  int priority = 0;  // lower is served first where the policy looks at it
  SequenceStatus status = SequenceStatus::kNew;
  // Tokens that steps in flight sample: they count, but their ids are not known yet.
  int num_pending_tokens = 0;
  // No step runs ahead: what it may draw depends on all ids before, or on how many a step gives.
  bool awaits_ids = false;
  int num_computed_tokens = 0;  // tokens whose KV is stored, or will be by the steps in flight
  int num_cached_tokens = 0;    // tokens it did not have to compute when it first ran
  int num_preemptions = 0;
  std::vector<int32_t> block_table;

  // What it may share. Tokens beyond num_cacheable_tokens are neither looked up nor registered;
  // only sequences of the same salt share.
  int num_cacheable_tokens = 0;
  bool reads_prefix_cache = true;
  uint64_t cache_salt = 0;
  PrefixChain chain;

  // Guesses at what comes behind its tokens, to be computed and verified with them: while it runs
  // and until its step is collected. Only where it awaits ids.
  std::vector<int32_t> draft_ids;

  // Its place in the queue, kept while it runs: to go back must not need memory.
  SequenceQueue::node_type queue_node;

  int num_tokens() const { return num_prompt_tokens + num_output_tokens(); }
  int num_output_tokens() const { return static_cast<int>(output().size()) + num_pending_tokens; }
  // Drafts included. None once the last token it may have is sampled: that one is never fed back.
  int num_uncomputed_tokens() const {
    if (num_tokens() >= max_num_tokens) return 0;
    if (!awaits_ids) return num_tokens() - num_computed_tokens;
    if (num_pending_tokens > 0) return 0;
    return num_tokens() + static_cast<int>(draft_ids.size()) - num_computed_tokens;
  }
  std::span<const int32_t> prompt() const {
    if (prompt_of != nullptr) return prompt_of->prompt();
    return {token_ids.data(), static_cast<size_t>(num_prompt_tokens)};
  }
  std::span<const int32_t> output() const {
    return std::span(token_ids).subspan(holds_prompt ? num_prompt_tokens : 0);
  }

  // Its step was collected, which found num_known tokens there: forgets the drafts, and returns how
  // many tokens have KV. That of a draft is a token's only where both are one, and the last token
  // has none: where nothing was drawn, it is computed again.
  int resolve_drafts(int num_known) {
    const auto drawn = std::span(token_ids).subspan(num_known);
    const auto differs = std::ranges::mismatch(drawn, draft_ids).in1;
    draft_ids.clear();
    return std::min(num_known + static_cast<int>(differs - drawn.begin()), num_tokens() - 1);
  }

  // Whoever computes the sequence or looks it up in the cache has it hold its prompt.
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
