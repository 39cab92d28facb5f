#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "engine/trace.h"
#include "grammar/grammar.h"

namespace nanovllm {

namespace {

RequestPreparer preparer_of(EngineParts& parts, const GrammarCompiler* grammars) {
  EngineLimits& limits = parts.info;
  limits.max_num_batched_tokens = parts.config.max_num_batched_tokens;
  limits.max_num_seqs = parts.config.max_num_seqs;
  limits.num_kvcache_blocks = parts.runner->num_kvcache_blocks();
  limits.kvcache_block_size = parts.config.kvcache_block_size;
  const std::span<const int> windows = parts.runner->kv_windows();
  limits.kv_windows.assign(windows.begin(), windows.end());
  limits.takes_priorities = parts.config.scheduling_policy == "priority";
  RequestPreparer preparer = {parts.model_dir, std::move(parts.info), parts.tokenizer.get()};
  preparer.grammars = grammars;
  if (preparer.tokenizer != nullptr && preparer.tokenizer->token_to_id("<think>") &&
      preparer.tokenizer->token_to_id("</think>")) {
    preparer.thinking_start = "<think>";
    preparer.thinking_end = "</think>";
    preparer.may_think_first = false;
  }
  return preparer;
}

}  // namespace

EngineCore::EngineCore(EngineParts parts)
    : parts_(std::move(parts)),
      grammars_(parts_.tokenizer ? std::make_unique<const GrammarCompiler>(*parts_.tokenizer)
                                 : nullptr),
      preparer_(preparer_of(parts_, grammars_.get())),
      blocks_(info().num_kvcache_blocks, info().kvcache_block_size, info().kv_windows,
              parts_.runner->state_pool()),
      scheduler_(info(), blocks_, info().takes_priorities ? by_priority : by_arrival,
                 make_step_time(parts_.config.max_step_seconds, parts_.runner->step_cost())),
      context_{.limits = static_cast<const EngineLimits&>(info()),
               .tokenizer = parts_.tokenizer.get(),
               .eos_token_ids = parts_.eos_token_ids,
               .enable_prefix_caching = parts_.config.enable_prefix_caching,
               .has_drafter = parts_.drafting.drafter != nullptr,
               .synthetic_acceptance = parts_.drafting.synthetic_acceptance,
               .dictated = parts_.dictated.get(),
               .seed = parts_.config.seed} {
  if (parts_.drafting.drafter) drafting_.emplace(std::move(parts_.drafting), blocks_);
  const StepTime& time = scheduler_.time();
  if (time.most_seconds > 0 && time.cost.is_guess) learner_.emplace(time.cost);
}

EngineCore::~EngineCore() = default;

uint64_t EngineCore::add_request(Prompt prompt, const SamplingParams& params,
                                 const std::vector<std::vector<int32_t>>& previous_output_ids) {
  const auto* given = std::get_if<std::string>(&prompt);
  std::string text = given == nullptr ? "" : *given;
  return add_request(preparer_.check({.params = params, .previous_output_ids = previous_output_ids},
                                     std::move(prompt)),
                     std::move(text));
}

uint64_t EngineCore::add_request(CheckedRequest checked, std::string text) {
  if (!checked.is_for(preparer_)) checked = preparer_.check(std::move(checked).release());
  AddRequest asked = std::move(checked).release();
  const uint64_t id = next_request_id_;
  const uint64_t salt = salts_.number(asked.params.cache_salt);
  auto rules =
      constraints_.rules_of(asked.params, asked.grammar, info().vocab_size, context_.eos_token_ids);
  auto owner = std::make_unique<Request>(id, std::move(text), std::move(asked.prompt_token_ids),
                                         std::move(asked.params), context_, std::move(rules), salt);
  Request& request = *owner;
  if (!asked.previous_output_ids.empty()) {
    request.replay(asked.previous_output_ids);
    for (const auto& completion : request.completions()) {
      if (completion->finish_reason != FinishReason::kNone) scheduler_.finish(*completion);
    }
  }
  if (!withholds_remarks_) remark_on(request, asked.grammar.get());
  Requests added;
  added.emplace(id, std::move(owner));
  if (changed_.capacity() <= requests_.size()) changed_.reserve(2 * requests_.size() + 1);
  if (request.completions()[0]->status == SequenceStatus::kFinished) {
    release_siblings(request);
  } else {
    scheduler_.add(*request.completions()[0]);
  }
  // Nothing fails once the scheduler knows it.
  requests_.merge(added);
  ++next_request_id_;
  for (const auto& completion : request.completions()) {
    if (completion->status == SequenceStatus::kFinished) {
      mark_changed(request);
    } else {
      enter_phase(*completion, Phase::kQueued);
    }
  }
  return id;
}

void EngineCore::remark_on(const Request& request, const Grammar* grammar) {
  const std::vector<std::string>& words = request.params().bad_words;
  if (!words.empty()) remarks_.on_bad_words(words, tokenizer());
  if (grammar != nullptr) remarks_.on_grammar(*grammar);
}

void EngineCore::abort_request(uint64_t request_id) noexcept {
  const auto found = requests_.find(request_id);
  if (found == requests_.end() || found->second->is_finished()) return;
  give_up(*found->second);
}

void EngineCore::discard_request(uint64_t request_id) noexcept {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  end_request(*found->second);
  std::erase(changed_, found->second.get());
  erase(*found->second);
}

std::optional<RequestOutput> EngineCore::finish_request(uint64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return std::nullopt;
  end_request(*found->second);
  std::optional<RequestOutput> output = found->second->output();
  discard_request(request_id);
  return output;
}

std::vector<RequestOutput> EngineCore::step() {
  last_step_ = {};
  last_schedule_.clear();
  const auto most = static_cast<size_t>(parts_.runner->max_in_flight());
  try {
    bool alive = false;
    do {
      while (in_flight_.size() < most && submit_step()) {
      }
      if (in_flight_.empty()) break;
      alive = collect_step();
    } while (!alive && changed_.empty());
  } catch (...) {
    recover();
    throw;
  }
  return take_outputs();
}

// Schedules one step and hands it to the runner. False when there is nothing to run now, or when
// the last one waits to be drawn.
bool EngineCore::submit_step() {
  if (!in_flight_.empty() && !in_flight_.back().is_drawn) return false;
  context_.now = Clock::now();
  const auto scheduled = scheduler_.schedule();
  for (Sequence* sequence : scheduler_.preempted()) {
    enter_phase(completion_of(*sequence), Phase::kPreempted);
    ++counts_.num_preemptions;
  }
  if (scheduled.empty()) return false;
  InFlightStep step;
  if (drafting_) {
    step.guessing_seconds = drafting_->propose(scheduled, info().max_num_batched_tokens);
  }
  step.submitted_at = context_.now;
  step.num_running = static_cast<int>(scheduler_.running().size());
  step.num_waiting = static_cast<int>(scheduler_.waiting().size());
  step.num_used_blocks = blocks_.num_used_blocks();
  step.num_used_states = blocks_.states().num_sequences_now();
  step.entries.reserve(scheduled.size());
  input_.sequences.clear();
  int num_draws = 0;
  for (const auto& [sequence, num_new_tokens] : scheduled) {
    Completion& completion = completion_of(*sequence);
    SequenceInput& input = input_.sequences.emplace_back();
    completion.request->fill_input(completion, num_new_tokens, input);
    const int num_drafts = static_cast<int>(input.draft_token_ids.size());
    if (input.sample) completion.draw_number = std::exchange(num_draws, num_draws + 1 + num_drafts);
    step.entries.push_back({&completion, completion.num_computed_tokens, num_new_tokens, num_drafts,
                            completion.num_preemptions, input.sample, input.pending_from});
    if (completion.phase != Phase::kDecode) enter_phase(completion, Phase::kPrefill);
  }
  parts_.runner->submit(input_);
  scheduler_.advance(scheduled);
  in_flight_.push_back(std::move(step));
  if (!in_flight_.back().needs_ids()) draw(in_flight_.back());
  return true;
}

void EngineCore::draw(InFlightStep& step) {
  rows_.clear();
  step.add_rows(rows_);
  rows_.make_masks();
  parts_.runner->draw(rows_.rows());
  step.is_drawn = true;
}

// Waits for the oldest step. False when all it computed was for requests that have ended since.
bool EngineCore::collect_step() {
  const StepOutput output = parts_.runner->collect();
  context_.now = Clock::now();
  const InFlightStep& step = in_flight_.front();
  NANOVLLM_CHECK(output.sequences.size() == step.entries.size());
  for (const SamplingResult& result : output.results) {
    if (result.token_id >= info().vocab_size) {
      throw_error(ErrorCode::kInternal, "The model sampled token {} but has only {}.",
                  result.token_id, info().vocab_size);
    }
  }
  bool alive = false;
  for (size_t i = 0; i < step.entries.size(); ++i) {
    if (step.entries[i].completion->finish_reason != FinishReason::kNone) continue;
    alive = true;
    update_from_output(step.entries[i], output.sequences[i]);
  }
  if (in_flight_.size() == 2 && !in_flight_.back().is_drawn) draw(in_flight_.back());
  if (alive) report(step);
  in_flight_.pop_front();
  return alive;
}

// A request that took its token in half can't go on, and would meet the same error again.
void EngineCore::update_from_output(const InFlightStep::Entry& entry,
                                    const SequenceOutput& output) {
  Request& request = *entry.completion->request;
  try {
    take_tokens(entry, output);
    const bool prompt_computed = register_computed(entry);
    if (!output.sampled.empty()) mark_changed(request);
    move_on(entry, prompt_computed);
  } catch (const Error& error) {  // its text can't be decoded
    give_up(request);
    request.give_reason(error.what());
  } catch (...) {
    give_up(request);
    throw;
  }
}

// The three are inline, because what a shared library exports is called and not merged, and these
// are called for every sequence of every step. Tokens count even if the sequence had to give its
// blocks back since: they were drawn before.
inline void EngineCore::take_tokens(const InFlightStep::Entry& entry,
                                    const SequenceOutput& output) {
  Completion& completion = *entry.completion;
  NANOVLLM_CHECK(entry.num_drafts > 0 || output.sampled.size() == (entry.sampled ? 1 : 0));
  const size_t num_tokens = completion.token_ids.size();
  completion.request->append_output(completion, entry.sampled, output);
  const size_t num_gained = completion.token_ids.size() - num_tokens;
  if (drafting_) {
    drafting_->collected(completion, static_cast<int>(num_tokens));
    count_drafts(entry, std::min(num_gained, std::max<size_t>(output.sampled.size(), 1) - 1));
  }
  counts_.num_generation_tokens += static_cast<int64_t>(num_gained);
  if (completion.phase == Phase::kPrefill && num_gained > 0 &&
      num_gained == completion.output().size()) {
    counts_.num_prompt_tokens += completion.num_prompt_tokens;
  }
}

void EngineCore::count_drafts(const InFlightStep::Entry& entry, size_t num_accepted) {
  if (entry.num_drafts == 0) return;
  ++counts_.num_drafts;
  counts_.num_draft_tokens += entry.num_drafts;
  std::vector<int>& accepted = counts_.num_accepted_per_pos;
  if (accepted.size() < num_accepted) accepted.resize(num_accepted);
  for (size_t i = 0; i < num_accepted; ++i) ++accepted[i];
}

inline bool EngineCore::register_computed(const InFlightStep::Entry& entry) {
  Completion& completion = *entry.completion;
  const bool holds_its_blocks = entry.num_preemptions == completion.num_preemptions;
  if (!holds_its_blocks) return false;
  int num_computed_tokens = entry.num_computed_tokens + entry.num_new_tokens;
  if (entry.sampled && !completion.draft_ids.empty()) {
    num_computed_tokens = completion.resolve_drafts(num_computed_tokens - entry.num_drafts);
    completion.num_computed_tokens = num_computed_tokens;
    blocks_.shrink(completion, completion.num_tokens());
  }
  blocks_.register_computed(completion, num_computed_tokens);
  return num_computed_tokens >= completion.num_prompt_tokens;
}

inline void EngineCore::move_on(const InFlightStep::Entry& entry, bool prompt_computed) {
  Completion& completion = *entry.completion;
  Request& request = *completion.request;
  const bool finished = completion.finish_reason != FinishReason::kNone;
  if (finished) {
    scheduler_.finish(completion);
    enter_phase(completion, Phase::kNone);
  } else if (entry.sampled && completion.phase == Phase::kPrefill) {
    enter_phase(completion, Phase::kDecode);
  }
  if (!request.siblings_released && completion.index == 0 && (prompt_computed || finished)) {
    release_siblings(request);
  }
}

void EngineCore::release_siblings(Request& request) {
  std::vector<Sequence*> siblings;
  for (const auto& completion : request.completions()) {
    if (completion->status == SequenceStatus::kNew) siblings.push_back(completion.get());
  }
  scheduler_.add(siblings);
  request.siblings_released = true;
}

void EngineCore::give_up(Request& request) noexcept {
  end_request(request);
  mark_changed(request);
}

void EngineCore::end_request(Request& request) noexcept {
  for (const auto& completion : request.completions()) {
    request.abort(*completion);
    scheduler_.finish(*completion);
    enter_phase(*completion, Phase::kNone);
  }
}

// The runner may have steps that it knows nothing wrong of: they are forgotten on both sides, and
// what was not collected is computed again.
void EngineCore::recover() noexcept {
  parts_.runner->abandon();
  while (!scheduler_.running().empty()) {
    Completion& completion = completion_of(*scheduler_.running().back());
    scheduler_.preempt(completion);
    enter_phase(completion, Phase::kPreempted);
  }
  for (const auto& [id, request] : requests_) {
    for (const auto& completion : request->completions()) completion->num_pending_tokens = 0;
  }
  in_flight_.clear();
}

void EngineCore::mark_changed(Request& request) noexcept {
  if (!std::exchange(request.changed, true)) changed_.push_back(&request);
}

// Steps in flight may still name the request: it lives until the last of them is collected.
void EngineCore::erase(Request& request) noexcept {
  auto node = requests_.extract(request.id());
  if (!in_flight_.empty()) in_flight_.back().ended.insert(std::move(node));
}

// All of them, or none where there is no memory for all: then the next step's come with them.
std::vector<RequestOutput> EngineCore::take_outputs() {
  std::vector<RequestOutput> outputs;
  outputs.reserve(changed_.size());
  for (const Request* request : changed_) {
    if (auto output = request->output()) outputs.push_back(std::move(*output));
  }
  for (Request* request : changed_) {
    request->changed = false;
    request->mark_delivered();
    if (request->is_finished()) erase(*request);
  }
  changed_.clear();
  return outputs;
}

void EngineCore::report(const InFlightStep& step) {
  // A step that was submitted ahead begins when the one before it ends.
  const auto begin = std::max(step.submitted_at, last_collected_at_);
  last_collected_at_ = Clock::now();
  step.count(counts_, last_schedule_);
  last_step_ = std::exchange(counts_, {});
  last_step_.num_running = step.num_running;
  last_step_.num_waiting = step.num_waiting;
  last_step_.num_used_blocks = step.num_used_blocks;
  last_step_.num_total_blocks = blocks_.num_blocks();
  last_step_.num_used_states = step.num_used_states;
  last_step_.num_total_states = blocks_.states().num_sequences();
  last_step_.seconds = std::chrono::duration<double>(last_collected_at_ - begin).count();
  learn_cost();
  if (drafting_) drafting_->learn(last_step_, step.guessing_seconds);
  for (const auto& observer : parts_.observers) {
    observer->on_step(begin, last_collected_at_, last_step_, last_schedule_);
  }
}

void EngineCore::learn_cost() {
  if (!learner_ || last_step_.num_prefill_tokens == 0) return;
  double num_pairs = 0;
  for (const ScheduledRequest& part : last_schedule_) {
    num_pairs += StepCost::pairs(part.num_new_tokens, part.num_computed_tokens);
  }
  learner_->learn(last_step_.num_prefill_tokens + last_step_.num_decode_tokens, num_pairs,
                  last_step_.seconds);
  scheduler_.set_cost(learner_->cost());
}

void EngineCore::enter_phase(Completion& completion, Phase phase) noexcept {
  const Phase last = std::exchange(completion.phase, phase);
  if (last == phase) return;
  if (drafting_ && phase == Phase::kNone) drafting_->ended(completion);
  if (last == Phase::kQueued && phase == Phase::kPrefill) {  // it never ran before
    completion.request->note_first_step();
    if (completion.num_cacheable_tokens > 0 && completion.reads_prefix_cache) {
      counts_.num_prefix_cache_queries += completion.num_prompt_tokens;
      counts_.num_prefix_cache_hits += completion.num_cached_tokens;
    }
  }
  for (const auto& observer : parts_.observers) {
    observer->on_phase(completion.request_id, completion.index, last, phase, Clock::now());
  }
}

const Tokenizer& EngineCore::tokenizer() const {
  if (parts_.tokenizer == nullptr) {
    throw_error(ErrorCode::kUnsupported, "{} has no tokenizer; use token ids.", parts_.model_dir);
  }
  return *parts_.tokenizer;
}

void EngineCore::start_trace(const std::string& path) {
  check_trace_file(path, parts_.model_dir);
  finish_trace();
  auto trace = std::make_unique<TraceWriter>(path);
  for (const auto& [id, request] : requests_) {
    for (const auto& completion : request->completions()) {
      if (completion->phase == Phase::kNone) continue;
      trace->on_phase(id, completion->index, Phase::kNone, completion->phase, Clock::now());
    }
  }
  parts_.observers.push_back(std::move(trace));
}

void EngineCore::finish_trace() {
  std::erase_if(parts_.observers, [](const auto& observer) { return observer->finish(); });
}

std::string EngineCore::check_integrity() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [id, request] : requests_) {
    for (const auto& completion : request->completions()) sequences.push_back(completion.get());
  }
  return blocks_.check_integrity(sequences);
}

}  // namespace nanovllm
