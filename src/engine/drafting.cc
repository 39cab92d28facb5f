#include "engine/drafting.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/message.h"

namespace nanovllm {

namespace {

// Whether it computes the last token that is known of it, and nothing else.
bool decodes(const ScheduledSequence& entry) {
  return entry.num_new_tokens == 1 &&
         entry.sequence->num_computed_tokens + 1 == entry.sequence->num_tokens();
}

}  // namespace

double Drafting::propose(std::span<ScheduledSequence> scheduled, int max_num_tokens) {
  int num_rows = 0;
  for (const ScheduledSequence& entry : scheduled) num_rows += entry.num_new_tokens;
  const auto num_decodes = static_cast<int>(std::ranges::count_if(scheduled, decodes));
  const int limit = parts_.most_tokens(num_decodes);
  entries_.clear();
  for (ScheduledSequence& entry : scheduled) {
    if (most_for(entry, limit) == 0) continue;
    entries_.push_back(&entry);
    completion_of(*entry.sequence).proposed.clear();  // of a step that was given up
  }
  for (size_t i = 0; i < parts_.others.size(); ++i) {
    ask(*parts_.others[i], scheduled, limit);
    take(static_cast<int>(i) + 1);
  }
  const double seconds = guess(scheduled, num_decodes, limit);
  drafts_.clear();
  for (const ScheduledSequence* entry : entries_) {
    const DraftTokens* best = best_of(*entry);
    drafts_.push_back(best != nullptr ? *best : DraftTokens{});
  }
  cut(num_decodes, max_num_tokens - num_rows);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Completion& completion = completion_of(*entries_[i]->sequence);
    std::vector<int32_t>& ids = drafts_[i].ids;
    ids.resize(make_room(completion, static_cast<int>(ids.size())));
    completion.draft_ids = std::move(ids);
    entries_[i]->num_new_tokens += static_cast<int>(completion.draft_ids.size());
  }
  put_decodes_first(scheduled);
  return seconds;
}

// A model also computes prompts, and what it has missed if it did not guess in the step before:
// then its time says nothing about passes.
double Drafting::guess(std::span<ScheduledSequence> scheduled, int num_decodes, int limit) {
  if (parts_.drafter == nullptr) return 0;
  const bool computes = parts_.drafter->computes();
  if (computes && parts_.planner && num_decodes > 0) {
    limit = parts_.planner->num_guesses(num_decodes, limit);
  }
  const auto begin = Clock::now();
  try {
    ask(*parts_.drafter, scheduled, limit);
  } catch (const Error& error) {
    drop_drafter(error.what());
    return 0;
  }
  if (!computes) {
    take(0);
    return 0;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  size_t num_passes = 0;
  bool has_prompts = false;
  for (const DraftRequest& request : requests_) {
    num_passes = std::max(num_passes, request.draft.ids.size());
    has_prompts = has_prompts || request.most == 0;
  }
  take(0);
  const bool has_missed_some = !std::exchange(has_guessed_, num_passes > 0);
  if (parts_.planner && num_passes > 0 && !has_prompts && !has_missed_some) {
    parts_.planner->learn_pass(num_decodes, seconds / static_cast<double>(num_passes));
  }
  return seconds;
}

// What guesses only is no reason to end anybody's request.
void Drafting::drop_drafter(const char* why) {
  print_message(
      "nanovllm: from now on nothing is drafted by what speculative_config names, as it failed: "
      "{}\n",
      why);
  parts_.drafter.reset();
}

void Drafting::ask(Drafter& drafter, std::span<ScheduledSequence> scheduled, int limit) {
  const bool computes = drafter.computes();
  requests_.clear();
  for (const ScheduledSequence& entry : scheduled) {
    Completion& completion = completion_of(*entry.sequence);
    int most = most_for(entry, limit);
    if (computes && most > 0) {
      most = has_as_good_ones(entry, most) ? 0 : make_room(completion, most);
    }
    // A model falls behind with those who decode, until they get drafts again.
    if (most == 0 && (!computes || decodes(entry))) continue;
    requests_.push_back({.sequence = entry.sequence,
                         .num_new_tokens = entry.num_new_tokens,
                         .most = most,
                         .row = completion.request->guess_row(completion)});
  }
  if (!requests_.empty()) drafter.propose(requests_);
}

// Cuts what was proposed to what may come, and notes it.
void Drafting::take(int drafter) {
  for (DraftRequest& request : requests_) {
    DraftTokens& draft = request.draft;
    NANOVLLM_CHECK(std::ssize(draft.ids) <= request.most);
    Completion& completion = completion_of(*request.sequence);
    completion.request->cut_draft(completion, draft.ids);
    draft.drafter = drafter;
    if (!draft.ids.empty()) completion.proposed.push_back(std::move(draft));
  }
}

double Drafting::expected_length(const DraftTokens& draft) const {
  return parts_.planner ? parts_.planner->expected_length(draft)
                        : static_cast<double>(draft.ids.size());
}

// Of what was proposed, the draft of which the most tokens are expected, or null.
const DraftTokens* Drafting::best_of(const ScheduledSequence& entry) const {
  const auto& proposed = completion_of(*entry.sequence).proposed;
  const auto best = std::ranges::max_element(
      proposed, {}, [this](const DraftTokens& draft) { return expected_length(draft); });
  return best == proposed.end() ? nullptr : &*best;
}

// Whether others proposed what the guesses of a model, which take a pass each, are not expected to
// outdo.
bool Drafting::has_as_good_ones(const ScheduledSequence& entry, int num_guesses) const {
  const DraftTokens* best = best_of(entry);
  const DraftTokens guesses = {.ids = std::vector<int32_t>(num_guesses), .evidence = 1};
  return best != nullptr && expected_length(*best) >= expected_length(guesses);
}

void Drafting::put_decodes_first(std::span<ScheduledSequence> scheduled) {
  others_.clear();
  size_t num_decodes = 0;
  for (const ScheduledSequence& entry : scheduled) {
    if (entry.num_new_tokens == 1) {
      scheduled[num_decodes++] = entry;
    } else {
      others_.push_back(entry);
    }
  }
  std::ranges::copy(others_, scheduled.subspan(num_decodes).begin());
}

// How many drafts it may have: one token is drawn behind them, and it may be the last. Recurrent
// layers take none of the next chunk: the state at its beginning would have taken in a guess.
int Drafting::most_for(const ScheduledSequence& entry, int limit) const {
  const Sequence& sequence = *entry.sequence;
  if (!decodes(entry) || sequence.num_pending_tokens > 0) return 0;
  int most = std::min(limit, sequence.max_num_tokens - sequence.num_tokens() - 1);
  if (blocks_.has_states()) {
    const auto& [num_slots, num_logs, chunk, max_drafts] = blocks_.states().size();
    most = std::min({most, max_drafts, chunk - 1 - sequence.num_computed_tokens % chunk});
  }
  return std::max(0, most);
}

void Drafting::cut(int num_decodes, int num_left) {
  if (parts_.planner) {
    parts_.planner->cut(drafts_, num_decodes, num_left);
    return;
  }
  for (DraftTokens& draft : drafts_) {
    if (std::ssize(draft.ids) > num_left) draft.ids.resize(num_left);
    num_left -= static_cast<int>(draft.ids.size());
  }
}

// Returns for how many there is room behind what the step computes of it, in blocks of which nobody
// has use, so that guesses cost no prefix hits. Surplus goes back.
int Drafting::make_room(Completion& completion, int num_drafts) {
  const int num_tokens = completion.num_tokens();
  const int wanted = num_tokens + num_drafts;
  const int with_room =
      std::max(num_tokens, blocks_.num_tokens_with_empty_room(completion, wanted));
  const bool has_room = blocks_.reserve(completion, with_room);
  NANOVLLM_CHECK(has_room);
  blocks_.shrink(completion, with_room);
  return with_room - num_tokens;
}

void Drafting::collected(Completion& completion, int num_known) {
  if (parts_.planner) {
    const auto tokens = std::span(completion.token_ids).subspan(num_known);
    for (const DraftTokens& draft : completion.proposed) parts_.planner->learn(draft, tokens);
  }
  completion.proposed.clear();
}

void Drafting::ended(const Completion& completion) const noexcept {
  if (parts_.drafter) parts_.drafter->ended(completion);
  for (const auto& other : parts_.others) other->ended(completion);
}

void Drafting::learn(const StepStats& step, double guessing_seconds) {
  if (parts_.planner && step.num_prefill_tokens == 0) {
    parts_.planner->learn_step(step.num_decode_tokens, step.seconds - guessing_seconds);
  }
}

}  // namespace nanovllm
