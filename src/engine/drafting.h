// Drafts of a step: from whom, how long, and what became of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/block_manager.h"
#include "engine/draft_planner.h"
#include "engine/drafter.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace nanovllm {

inline constexpr int kMostDraftTokens = 32;

struct DraftingParts {
  std::unique_ptr<Drafter> drafter;  // null = the others alone
  // They propose too, and are no models: a sequence takes the draft of which the most tokens are
  // expected.
  std::vector<std::unique_ptr<Drafter>> others = {};
  // Most tokens of a draft where so many sequences decode.
  std::function<int(int)> most_tokens = [](int) { return kMostDraftTokens; };
  // For benchmarks: each draft that may be accepted is with this probability, whatever the model
  // says, so that texts are nonsense. 0 = those are that were drawn.
  double synthetic_acceptance = 0;
  // None: all that is proposed is verified, as far as there is room.
  std::optional<DraftPlanner> planner;
};

// Drafts take what a schedule leaves: tokens of the step and blocks that are free. Nobody waits for
// them or is preempted. Not thread-safe.
class Drafting {
 public:
  Drafting(DraftingParts parts, BlockManager& blocks) : parts_(std::move(parts)), blocks_(blocks) {}

  // Gives drafts to sequences of a step that compute the last token that is known of them, until
  // the step has max_num_tokens. Sequences with one new token come first afterwards, too. Returns
  // the seconds that a model took to guess them.
  double propose(std::span<ScheduledSequence> scheduled, int max_num_tokens);
  // To be called when a step was collected that the completion was in, before which it had
  // num_known tokens.
  void collected(Completion& completion, int num_known);
  // What a step took, and what propose() returned for it. Prompts hide what rows of drafts cost,
  // and the first one is slow.
  void learn(const StepStats& step, double guessing_seconds);
  void ended(const Completion& completion) const noexcept;

 private:
  double guess(std::span<ScheduledSequence> scheduled, int num_decodes, int limit);
  void ask(Drafter& drafter, std::span<ScheduledSequence> scheduled, int limit);
  void take(int drafter);
  double expected_length(const DraftTokens& draft) const;
  const DraftTokens* best_of(const ScheduledSequence& entry) const;
  bool has_as_good_ones(const ScheduledSequence& entry, int num_guesses) const;
  void put_decodes_first(std::span<ScheduledSequence> scheduled);
  int most_for(const ScheduledSequence& entry, int limit) const;
  void cut(int num_decodes, int num_left);
  int make_room(Completion& completion, int num_drafts);
  void drop_drafter(const char* why);

  DraftingParts parts_;
  BlockManager& blocks_;
  bool has_guessed_ = false;                 // a model, in the last step
  std::vector<DraftRequest> requests_;       // of one drafter; reused, as those below
  std::vector<ScheduledSequence*> entries_;  // that get drafts, and these
  std::vector<DraftTokens> drafts_;
  std::vector<ScheduledSequence> others_;
};

}  // namespace nanovllm
