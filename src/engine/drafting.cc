#include "engine/drafting.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nanovllm {

namespace {

// Whether it computes the last token that is known of it, and nothing else.
bool decodes(const ScheduledSequence& entry) {
  return entry.num_new_tokens == 1 &&
         entry.sequence->num_computed_tokens + 1 == entry.sequence->num_tokens();
}

}  // namespace

void Drafting::propose(std::span<ScheduledSequence> scheduled, int max_num_tokens) {
  int num_rows = 0;
  for (const ScheduledSequence& entry : scheduled) num_rows += entry.num_new_tokens;
  const auto num_decodes = static_cast<int>(std::ranges::count_if(scheduled, decodes));
  const int limit = parts_.most_tokens(num_decodes);
  requests_.clear();
  entries_.clear();
  for (ScheduledSequence& entry : scheduled) {
    const int most = most_for(entry, limit);
    if (most <= 0) continue;
    requests_.push_back({.sequence = entry.sequence, .most = most});
    entries_.push_back(&entry);
  }
  if (requests_.empty()) return;
  parts_.drafter->propose(requests_);
  for (DraftRequest& request : requests_) {
    completion_of(*request.sequence).proposed.clear();  // of a step that was given up
    take(request, 0);
  }
  ask_others();
  drafts_.clear();
  for (DraftRequest& request : requests_) drafts_.push_back(&request.draft);
  cut(num_decodes, max_num_tokens - num_rows);
  for (size_t i = 0; i < requests_.size(); ++i) {
    Completion& completion = completion_of(*entries_[i]->sequence);
    make_room(completion, requests_[i].draft.ids);
    completion.draft_ids = std::move(requests_[i].draft.ids);
    entries_[i]->num_new_tokens += static_cast<int>(completion.draft_ids.size());
  }
  put_decodes_first(scheduled);
}

// Cuts what was proposed to what may come, and notes it.
void Drafting::take(DraftRequest& request, int drafter) {
  DraftTokens& draft = request.draft;
  NANOVLLM_CHECK(std::ssize(draft.ids) <= request.most);
  Completion& completion = completion_of(*request.sequence);
  completion.request->cut_draft(completion, draft.ids);
  draft.drafter = drafter;
  if (!draft.ids.empty()) completion.proposed.push_back(draft);
}

void Drafting::ask_others() {
  for (size_t i = 0; i < parts_.others.size(); ++i) {
    rivals_.clear();
    for (const DraftRequest& request : requests_) {
      rivals_.push_back({.sequence = request.sequence, .most = request.most});
    }
    parts_.others[i]->propose(rivals_);
    for (size_t r = 0; r < rivals_.size(); ++r) {
      take(rivals_[r], static_cast<int>(i) + 1);
      DraftTokens& best = requests_[r].draft;
      if (expected_length(rivals_[r].draft) > expected_length(best)) {
        best = std::move(rivals_[r].draft);
      }
    }
  }
}

double Drafting::expected_length(const DraftTokens& draft) const {
  return parts_.planner ? parts_.planner->expected_length(draft)
                        : static_cast<double>(draft.ids.size());
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
  return most;
}

void Drafting::cut(int num_decodes, int num_left) {
  if (parts_.planner) {
    parts_.planner->cut(drafts_, num_decodes, num_left);
    return;
  }
  for (DraftTokens* draft : drafts_) {
    if (std::ssize(draft->ids) > num_left) draft->ids.resize(num_left);
    num_left -= static_cast<int>(draft->ids.size());
  }
}

void Drafting::make_room(Completion& completion, std::vector<int32_t>& ids) {
  const int num_tokens = completion.num_tokens();
  const int wanted = num_tokens + static_cast<int>(ids.size());
  const int with_room = std::max(num_tokens, blocks_.num_tokens_with_room(completion, wanted));
  ids.resize(with_room - num_tokens);
  const bool has_room = blocks_.reserve(completion, with_room);
  NANOVLLM_CHECK(has_room);
}

void Drafting::collected(Completion& completion, int num_known) {
  if (parts_.planner) {
    const auto tokens = std::span(completion.token_ids).subspan(num_known);
    for (const DraftTokens& draft : completion.proposed) parts_.planner->learn(draft, tokens);
  }
  completion.proposed.clear();
}

void Drafting::ended(const Completion& completion) const noexcept {
  parts_.drafter->ended(completion);
  for (const auto& other : parts_.others) other->ended(completion);
}

void Drafting::learn(const StepStats& step) {
  if (parts_.planner && step.num_prefill_tokens == 0) {
    parts_.planner->learn_step(step.num_decode_tokens, step.seconds);
  }
}

}  // namespace nanovllm
