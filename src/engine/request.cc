#include "engine/request.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/philox.h"

namespace nanovllm {

namespace {

// Sequences of this salt share with nobody but their siblings.
constexpr uint64_t kPrivateSalt = uint64_t{1} << 63;

// Distinct requests get unrelated streams (the finaliser of SplitMix64, Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

SamplingRow constant_row(const SamplingParams& params) {
  SamplingRow row;
  row.repetition_penalty = static_cast<float>(params.repetition_penalty);
  row.presence_penalty = static_cast<float>(params.presence_penalty);
  row.frequency_penalty = static_cast<float>(params.frequency_penalty);
  if (params.temperature == 0) {
    row.temperature = 0;
  } else {
    row.temperature = static_cast<float>(std::max(params.temperature, 0.01));
    // What is 0 as float32 would keep no token at all.
    row.top_p = std::max(static_cast<float>(params.top_p), std::numeric_limits<float>::min());
    row.min_p = static_cast<float>(params.min_p);
    row.top_k = std::max(params.top_k, 0);
  }
  return row;
}

// As SamplingRow counts them: -1 = none. A request's -1 means the whole vocabulary.
int num_logprobs(const std::optional<int>& asked, int vocab_size) {
  if (!asked) return -1;
  return *asked == -1 ? vocab_size : *asked;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

int64_t default_seed(int64_t engine_seed, uint64_t request_id) {
  return static_cast<int64_t>(mix(static_cast<uint64_t>(engine_seed) ^ mix(request_id)));
}

Request::Request(uint64_t id, std::string prompt, std::vector<int32_t> prompt_token_ids,
                 SamplingParams params, const RequestContext& context,
                 std::shared_ptr<const ConstraintRules> rules, uint64_t cache_salt)
    : id_(id),
      prompt_(std::move(prompt)),
      params_(std::move(params)),
      context_(context),
      row_(constant_row(params_)),
      stop_ids_(context.eos_token_ids),
      rules_(std::move(rules)),
      num_unfinished_(params_.n),
      added_at_(Clock::now()) {
  for (const auto& [token_id, bias] : params_.logit_bias) {
    logit_bias_.emplace_back(token_id, std::clamp(bias, -100.0f, 100.0f));
  }
  stop_ids_.insert(stop_ids_.end(), params_.stop_token_ids.begin(), params_.stop_token_ids.end());
  if (!params_.bad_words.empty()) bad_words_ = BadWords(params_.bad_words, *context.tokenizer);
  row_.num_logprobs = num_logprobs(params_.logprobs, context.limits.vocab_size);
  num_prompt_logprobs_ = num_logprobs(params_.prompt_logprobs, context.limits.vocab_size);
  if (params_.prompt_logprobs) prompt_logprobs_.emplace_back(std::nullopt);
  const auto num_prompt_tokens = static_cast<int64_t>(prompt_token_ids.size());
  const auto max_num_tokens = static_cast<int>(
      std::min<int64_t>(num_prompt_tokens + params_.max_tokens, context.limits.max_num_tokens()));
  completions_.push_back(
      std::make_unique<Completion>(id, 0, std::move(prompt_token_ids), max_num_tokens));
  for (int i = 1; i < params_.n; ++i) {
    completions_.push_back(std::make_unique<Completion>(*completions_[0], i));
  }
  if (context.dictated != nullptr) {
    const auto found = context.dictated->find(completions_.front()->token_ids);
    if (found != context.dictated->end()) dictated_ = found->second;
  }
  for (const auto& completion : completions_) {
    completion->request = this;
    completion->priority = params_.priority;
    completion->seed =
        static_cast<uint64_t>(params_.seed.value_or(default_seed(context.seed, id))) +
        completion->index;
    if (context.enable_prefix_caching) {
      completion->num_cacheable_tokens = max_num_tokens;
      completion->cache_salt = cache_salt;
    } else if (params_.n > 1) {  // the prompt's blocks, for each other
      completion->num_cacheable_tokens = completion->num_prompt_tokens;
      completion->cache_salt = kPrivateSalt | id;
    }
    if (params_.thinking_tags && params_.thinking_token_budget.value_or(-1) >= 0) {
      completion->thinking.emplace(*params_.thinking_tags, *params_.thinking_token_budget);
    }
    if (rules_ != nullptr) completion->constraint.emplace(*rules_, params_.thinking_tags);
    completion->awaits_ids = context.has_drafter;
    completion->salt = cache_salt;
    completion->reads_prefix_cache = completion->index > 0 || !params_.prompt_logprobs;
    if (!params_.stop.empty()) {
      completion->stop_strings.emplace(params_.stop, params_.include_stop_str_in_output);
    }
  }
}

void Request::replay(const std::vector<std::vector<int32_t>>& previous_output_ids) {
  if (previous_output_ids.size() > completions_.size()) {
    throw_error(ErrorCode::kInvalidArgument,
                "There are output ids of {} completions, but the request has n = {}.",
                previous_output_ids.size(), params_.n);
  }
  for (size_t i = 0; i < previous_output_ids.size(); ++i) {
    Completion& completion = *completions_[i];
    for (const int32_t id : previous_output_ids[i]) {
      if (id < 0 || id >= context_.limits.vocab_size) {
        throw_error(ErrorCode::kInvalidArgument,
                    "Output id {} of completion {} is out of vocabulary; the model knows 0 to {}.",
                    id, i, context_.limits.vocab_size - 1);
      }
      if (completion.finish_reason != FinishReason::kNone) {
        throw_error(ErrorCode::kInvalidArgument,
                    "Completion {} has {} output ids, but token {} ends it.", i,
                    previous_output_ids[i].size(), completion.output().size());
      }
      if (completion.constraint && !completion.constraint->admits(id)) {
        throw_error(ErrorCode::kInvalidArgument,
                    "Output id {} of completion {} does not follow its structured_outputs.", id, i);
      }
      append_token(completion, {.token_id = id, .logprobs = {}});
    }
    prompt_delivered_ = prompt_delivered_ || !previous_output_ids[i].empty();
  }
  if (!prompt_delivered_) return;
  metrics_ = {.time_to_finish = metrics_.time_to_finish};
  if (params_.prompt_logprobs) {  // they are not computed again
    prompt_logprobs_.resize(completions_[0]->num_prompt_tokens);
    completions_[0]->reads_prefix_cache = true;
  }
  mark_delivered();
}

void Request::note_first_step() noexcept {
  if (metrics_.time_to_first_step == 0) metrics_.time_to_first_step = seconds_until(context_.now);
}

void Request::fill_input(const Completion& completion, int num_new_tokens,
                         SequenceInput& input) const {
  input.token_ids = completion.token_ids;
  input.num_computed_tokens = completion.num_computed_tokens;
  input.num_new_tokens = num_new_tokens;
  input.kv_write_begin = completion.chain.num_blocks * context_.limits.kvcache_block_size;
  input.block_table = completion.block_table;
  input.states = completion.states;
  const int num_drafts = completion.num_computed_tokens + num_new_tokens - completion.num_tokens();
  input.sample = num_drafts >= 0;
  if (num_drafts > 0) input.draft_token_ids = std::span(completion.draft_ids).first(num_drafts);
  if (completion.num_pending_tokens > 0) input.pending_from = completion.draw_number;
  if (params_.prompt_logprobs && completion.index == 0) {
    input.prompt_logprobs_begin = static_cast<int>(prompt_logprobs_.size());
    input.prompt_logprobs_end = completion.num_prompt_tokens;
    input.num_prompt_logprobs = num_prompt_logprobs_;
  }
}

bool Request::needs_ids(const Completion& completion, int num_pending) const {
  if (num_pending == 0) return false;
  return bad_words_.depend_on_output() ||
         (completion.constraint && completion.constraint->depends_on(num_pending)) ||
         (completion.thinking && completion.thinking->num_free() <= num_pending);
}

SamplingRow Request::guess_row(const Completion& completion) const {
  SamplingRow row;
  row.temperature = row_.temperature;
  row.top_p = row_.top_p;
  row.min_p = row_.min_p;
  row.top_k = row_.top_k;
  row.seed = completion.seed;
  return row;
}

void Request::cut_draft(const Completion& completion, std::vector<int32_t>& ids) const {
  if (!completion.constraint) return;
  Constraint constraint = *completion.constraint;
  constraint.guess();
  const auto is_drawn = [&](int32_t id) {
    if (!constraint.admits(id)) return false;
    constraint.append(id);
    return !constraint.is_outgrown();
  };
  ids.erase(std::ranges::find_if_not(ids, is_drawn), ids.end());
}

void Request::add_rows(const Completion& completion, int position, int num_drafts, int pending_from,
                       StepRows& rows) const {
  const auto drafts = std::span(completion.draft_ids).first(num_drafts);
  std::span<const int32_t> output = completion.output();
  const size_t num_known = output.size();
  if (num_drafts > 0) {
    std::vector<int32_t>& ids = rows.add_list();
    ids.assign(output.begin(), output.end());
    ids.insert(ids.end(), drafts.begin(), drafts.end());
    output = ids;
  }
  std::optional<ThinkingBudget> thinking = completion.thinking;
  std::optional<Constraint> constraint = completion.constraint;
  for (int i = 0; i <= num_drafts; ++i) {
    SamplingRow& row = rows.add(row_);
    row.seed = completion.seed;
    row.position = static_cast<uint64_t>(position) + static_cast<uint64_t>(i);
    row.prompt_ids = completion.prompt();
    row.output_ids = output.first(num_known + i);
    row.pending_from = pending_from;
    row.logit_bias = logit_bias_;
    const bool is_early = position + i - completion.num_prompt_tokens < params_.min_tokens;
    const bool is_bound = constraint && constraint->binds();
    if (constraint) rows.add_mask(constraint->mask(is_early));
    if (is_early && !is_bound) {
      row.banned_ids = stop_ids_;
    } else if (constraint) {
      row.banned_ids = constraint->banned_ids();
    }
    if (thinking && !(constraint && constraint->is_in_text())) {
      row.forced_id = thinking->forced_id();
    }
    if (const int32_t id = forced_id(row, drafts.subspan(i)); id >= 0) row.forced_id = id;
    if (!bad_words_.empty()) {
      std::vector<int32_t>& banned = rows.add_list();
      banned.assign(row.banned_ids.begin(), row.banned_ids.end());
      bad_words_.append_banned(row.output_ids, banned);
      row.banned_ids = banned;
    }
    if (i == num_drafts) break;
    if (thinking) thinking->append(drafts[i]);
    if (!constraint) continue;
    constraint->guess();
    constraint->append(drafts[i]);
  }
}

// In benchmarks: what a row draws, before whose token these drafts stand; -1 = what the model says.
int32_t Request::forced_id(const SamplingRow& row, std::span<const int32_t> drafts) const {
  const size_t index = row.position - row.prompt_ids.size();
  if (index < dictated_.size()) return dictated_[index];
  if (context_.synthetic_acceptance == 0 || drafts.empty()) return -1;
  // Another random number than the one that draws.
  const bool accepts = philox_uniform(~row.seed, row.position) < context_.synthetic_acceptance;
  return accepts ? drafts.front() : (drafts.front() + 1) % context_.limits.vocab_size;
}

void Request::append_output(Completion& completion, bool sampled, const SequenceOutput& output) {
  for (const SamplingResult& result : output.prompt_logprobs) {
    prompt_logprobs_.emplace_back(position_logprobs(result));
  }
  if (!sampled) return;
  --completion.num_pending_tokens;
  for (const SamplingResult& result : output.sampled) {
    if (completion.finish_reason != FinishReason::kNone) return;
    if (result.token_id >= 0) {
      append_token(completion, result);
      continue;
    }
    // Behind a draft: the next step draws it again, not as a guess.
    if (&result != output.sampled.data()) return;
    if (has_empty_mask(completion)) {
      end_stuck(completion);
    } else {
      abort(completion, "the model's logits leave no token to draw");
    }
  }
}

// Whether its grammar leaves no token, or none but bad words' last ones.
bool Request::is_stuck(const Completion& completion) const {
  if (!completion.constraint || !completion.constraint->binds()) return false;
  if (completion.constraint->is_stuck()) return true;
  std::vector<int32_t> banned;
  bad_words_.append_banned(completion.output(), banned);
  return !banned.empty() && has_empty_mask(completion);
}

// Whether the draw had nothing to choose from, also where that shows in no transition alone, as of
// an automaton that its mask outgrew.
bool Request::has_empty_mask(const Completion& completion) const {
  if (!completion.constraint || !completion.constraint->binds()) return false;
  std::vector<int32_t> banned;
  bad_words_.append_banned(completion.output(), banned);
  const bool is_early = std::ssize(completion.output()) < params_.min_tokens;
  return completion.constraint->is_mask_empty(is_early, banned);
}

// Its grammar leaves no token: a text that is complete ends as it should, where nothing can be
// drawn that ends it.
void Request::end_stuck(Completion& completion) {
  if (completion.constraint->may_end()) {
    end(completion, FinishReason::kStop);
  } else {
    abort(completion, completion.constraint->why_stuck());
  }
}

void Request::append_token(Completion& completion, const SamplingResult& sampled) {
  const int32_t token_id = sampled.token_id;
  completion.token_ids.push_back(token_id);
  last_token_at_ = context_.now;
  if (metrics_.time_to_first_token == 0) {
    metrics_.time_to_first_token = seconds_until(last_token_at_);
  }
  if (params_.logprobs) completion.logprobs.push_back(position_logprobs(sampled));

  const bool at_stop_token = stops_at(completion, token_id);
  const bool at_length =
      completion.num_prompt_tokens + std::ssize(completion.output()) >= completion.max_num_tokens;
  if (context_.tokenizer != nullptr) detokenize(completion, token_id, at_stop_token);
  if (completion.finish_reason != FinishReason::kNone) return;  // it came to a stop string
  if (at_stop_token) {
    end(completion, FinishReason::kStop);
    return;
  }
  walk(completion, token_id);
  if (at_length && completion.finish_reason == FinishReason::kNone) {
    end(completion, FinishReason::kLength);
  }
}

// What the next token may be depends on this one.
void Request::walk(Completion& completion, int32_t token_id) {
  if (completion.thinking) completion.thinking->append(token_id);
  if (!completion.constraint) return;
  Constraint& constraint = *completion.constraint;
  constraint.append(token_id);
  // Text that looks like a thought is none.
  if (constraint.is_in_text()) completion.thinking.reset();
  // With its last token, so that who goes on with these ids finds the same end.
  if (is_stuck(completion)) end_stuck(completion);
}

bool Request::stops_at(Completion& completion, int32_t token_id) const {
  if (!contains(stop_ids_, token_id)) return false;
  // A grammar's text ends before min_tokens where nothing else can follow.
  const bool is_bound = completion.constraint && completion.constraint->binds();
  if (!is_bound && std::ssize(completion.output()) < params_.min_tokens) return false;
  const bool is_eos = !params_.ignore_eos && contains(context_.eos_token_ids, token_id);
  if (!is_eos && !contains(params_.stop_token_ids, token_id)) return false;
  // As in vLLM, further EOS ids count as stop tokens: they tell which of them it was.
  const bool is_first = context_.tokenizer && !context_.tokenizer->eos_token_ids().empty() &&
                        context_.tokenizer->eos_token_ids().front() == token_id;
  if (!is_eos || !is_first) completion.stop_reason = token_id;
  return true;
}

void Request::detokenize(Completion& completion, int32_t token_id, bool at_stop_token) {
  if (at_stop_token && !params_.include_stop_str_in_output) return;
  if (!completion.detokenizer) {
    completion.detokenizer.emplace(*context_.tokenizer, params_.skip_special_tokens,
                                   completion.prompt());
  }
  const bool is_marked = contains(params_.marked_token_ids, token_id);
  const std::string piece = completion.detokenizer->append(token_id, /*keep=*/is_marked);
  if (is_marked) {
    // It ends with the token's own text, where that has any.
    const std::string own = context_.tokenizer->id_to_token(token_id).value_or("");
    if (!own.empty() && piece.ends_with(own)) {
      completion.marks.push_back(
          {completion.num_decoded_bytes + piece.size() - own.size(), token_id});
    }
  }
  append_text(completion, piece);
}

// Stop strings count where they end after min_tokens, wherever they begin.
void Request::append_text(Completion& completion, const std::string& piece) {
  completion.num_decoded_bytes += piece.size();
  if (!completion.stop_strings) {
    completion.text += piece;
    return;
  }
  const bool may_match = std::ssize(completion.output()) > params_.min_tokens;
  const StopStringMatcher::Result result = completion.stop_strings->append(piece, may_match);
  completion.text += result.text;
  if (result.matched < 0) return;
  completion.stop_reason = params_.stop[result.matched];
  set_finished(completion, FinishReason::kStop);
}

// Ends a completion for another reason than a stop string: what was held back is certain now, and
// may still be found to hold a stop string.
void Request::end(Completion& completion, FinishReason reason) {
  if (completion.detokenizer) append_text(completion, completion.detokenizer->finish());
  if (completion.finish_reason != FinishReason::kNone) return;
  if (completion.stop_strings) completion.text += completion.stop_strings->finish();
  set_finished(completion, reason);
}

void Request::set_finished(Completion& completion, FinishReason reason) noexcept {
  completion.finish_reason = reason;
  if (metrics_.time_to_first_token > 0) metrics_.time_to_last_token = seconds_until(last_token_at_);
  if (--num_unfinished_ == 0) metrics_.time_to_finish = seconds_until(Clock::now());
}

void Request::abort(Completion& completion) noexcept {
  if (completion.finish_reason != FinishReason::kNone) return;
  try {
    end(completion, FinishReason::kAbort);
  } catch (...) {
    // Its text stays without what was held back. Nothing fails once it is finished.
    set_finished(completion, FinishReason::kAbort);
  }
}

void Request::abort(Completion& completion, std::string why) {
  end(completion, FinishReason::kAbort);
  // Ending it may have added text that was held back, and a stop string in it.
  if (completion.finish_reason == FinishReason::kAbort) completion.stop_reason = std::move(why);
}

void Request::give_reason(const char* reason) {
  for (const auto& completion : completions_) {
    // A stop token's id is none: the end it would have made is what failed.
    const bool has_one = std::holds_alternative<std::string>(completion->stop_reason);
    if (completion->finish_reason == FinishReason::kAbort && !has_one) {
      completion->stop_reason = reason;
    }
  }
}

PositionLogprobs Request::position_logprobs(const SamplingResult& result) const {
  PositionLogprobs position;
  position.reserve(result.logprobs.size());
  for (const LogprobEntry& entry : result.logprobs) {
    TokenLogprob& token = position.emplace_back();
    token.token_id = entry.token_id;
    token.logprob = entry.logprob;
    token.rank = entry.rank;
    if (context_.tokenizer != nullptr) {
      token.decoded_token = context_.tokenizer->decode(std::span(&entry.token_id, 1), false);
    }
  }
  return position;
}

std::optional<RequestOutput> Request::output() const {
  if (params_.output_kind == RequestOutputKind::kFinalOnly && !is_finished()) return std::nullopt;
  RequestOutput output;
  output.request_id = id_;
  output.finished = is_finished();
  output.metrics = metrics_;
  output.num_cached_tokens = completions_[0]->num_cached_tokens;
  for (const auto& completion : completions_) output.num_preemptions += completion->num_preemptions;
  if (params_.output_kind != RequestOutputKind::kDelta || !prompt_delivered_) {
    const auto prompt_ids = completions_[0]->prompt();
    output.prompt_token_ids.assign(prompt_ids.begin(), prompt_ids.end());
    output.prompt = prompt_;
    output.prompt_logprobs = prompt_logprobs_;
  }
  output.outputs.reserve(completions_.size());
  for (const auto& completion : completions_) {
    output.outputs.push_back(completion_output(*completion));
  }
  return output;
}

void Request::mark_delivered() noexcept {
  prompt_delivered_ = true;
  for (const auto& completion : completions_) {
    completion->num_delivered_tokens = completion->output().size();
    completion->num_delivered_bytes = completion->text.size();
  }
}

CompletionOutput Request::completion_output(const Completion& completion) const {
  CompletionOutput output;
  output.index = completion.index;
  output.finish_reason = completion.finish_reason;
  output.stop_reason = completion.stop_reason;
  const auto ids = completion.output();
  const bool delta = params_.output_kind == RequestOutputKind::kDelta;
  const size_t first_token = delta ? completion.num_delivered_tokens : 0;
  const size_t first_byte = delta ? completion.num_delivered_bytes : 0;
  output.token_ids.assign(ids.begin() + static_cast<ptrdiff_t>(first_token), ids.end());
  output.text = completion.text.substr(first_byte);
  auto mark = std::ranges::lower_bound(completion.marks, first_byte, {}, &TokenMark::offset);
  for (; mark != completion.marks.end() && mark->offset < completion.text.size(); ++mark) {
    output.marks.push_back({mark->offset - first_byte, mark->token_id});
  }
  if (params_.logprobs) {
    output.logprobs.assign(completion.logprobs.begin() + static_cast<ptrdiff_t>(first_token),
                           completion.logprobs.end());
  }
  return output;
}

double Request::seconds_until(Clock::time_point time) const noexcept {
  return std::chrono::duration<double>(time - added_at_).count();
}

}  // namespace nanovllm
