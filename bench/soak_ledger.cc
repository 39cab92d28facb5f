#include "soak_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/deltas.h"

namespace nanovllm {

namespace {

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!holds) throw SoakFailure(fmt::format(sentence, std::forward<Args>(args)...));
}

bool equal(const PositionLogprobs& a, const PositionLogprobs& b) {
  return std::ranges::equal(a, b, [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id && x.logprob == y.logprob && x.rank == y.rank;
  });
}

bool equal(const std::optional<PositionLogprobs>& a, const std::optional<PositionLogprobs>& b) {
  return a.has_value() == b.has_value() && (!a || equal(*a, *b));
}

size_t num_tokens(const RequestOutput& output) {
  size_t count = 0;
  for (const CompletionOutput& completion : output.outputs) count += completion.token_ids.size();
  return count;
}

std::string describe(const StopReason& reason) {
  if (const auto* id = std::get_if<int32_t>(&reason)) return fmt::format("token {}", *id);
  if (const auto* text = std::get_if<std::string>(&reason)) return fmt::format("\"{}\"", *text);
  return "no reason";
}

// An aborted completion is a beginning of what it would have been.
void check_repetition(const CompletionOutput& got, const CompletionOutput& first) {
  const size_t count = got.token_ids.size();
  const bool whole = got.finish_reason != FinishReason::kAbort;
  expect(whole ? count == first.token_ids.size() : count <= first.token_ids.size(),
         "its repetition gave {} tokens instead of {}", count, first.token_ids.size());
  for (size_t i = 0; i < count; ++i) {
    expect(got.token_ids[i] == first.token_ids[i],
           "its repetition gave token {} instead of {} at output position {} of {}",
           got.token_ids[i], first.token_ids[i], i, first.token_ids.size());
    expect(i >= got.logprobs.size() || equal(got.logprobs[i], first.logprobs[i]),
           "its repetition gave other log-probabilities at output position {}", i);
  }
  if (!whole) return;
  expect(got.finish_reason == first.finish_reason && got.stop_reason == first.stop_reason,
         "its repetition ended by \"{}\" ({}) instead of \"{}\" ({})", to_string(got.finish_reason),
         describe(got.stop_reason), to_string(first.finish_reason), describe(first.stop_reason));
  expect(got.text == first.text, "its repetition gave the text \"{}\" instead of \"{}\"", got.text,
         first.text);
}

}  // namespace

void SoakLedger::add(uint64_t id, SoakEntry entry) {
  expect(live_.empty() || id > live_.rbegin()->first, "the new request got the old id {}", id);
  live_.emplace(id, std::move(entry));
}

void SoakLedger::abort(uint64_t id) { live_.at(id).aborted = true; }

void SoakLedger::note_schedule(int64_t step, const std::vector<ScheduledRequest>& scheduled) {
  for (const ScheduledRequest& request : scheduled) {
    if (const auto found = live_.find(request.request_id); found != live_.end()) {
      found->second.scheduled_at = step;
    }
  }
}

std::vector<SoakEntry> SoakLedger::receive(int64_t step, std::vector<RequestOutput> outputs) {
  std::vector<SoakEntry> ended;
  for (RequestOutput& output : outputs) {
    const uint64_t id = output.request_id;
    const auto found = live_.find(id);
    expect(found != live_.end(), "request {} got an output but is not alive", id);
    SoakEntry& entry = found->second;
    try {
      take(entry, std::move(output));
    } catch (const SoakFailure& failure) {
      const SamplingParams& p = entry.request.params;
      throw SoakFailure(fmt::format(
          "request {} ({} prompt tokens, max_tokens {}, temperature {}, n {}, added after step {}, "
          "preempted {} times): {}",
          id, entry.request.ids.size(), p.max_tokens, p.temperature, p.n, entry.added_at,
          entry.total.num_preemptions, failure.what()));
    }
    if (entry.total.finished) {
      ended.push_back(std::move(entry));
      live_.erase(found);
    }
  }
  for (const auto& [id, entry] : live_) {
    expect(!entry.aborted, "request {} was aborted but the next step did not end it", id);
  }
  check_patience(step);
  return ended;
}

// Requests are served in the order they came, so the oldest one waits for none but those that hold
// memory already. One alone takes up to 4 max_num_tokens() steps: n is up to 4, and with
// max_num_seqs 1 its completions run one after another.
void SoakLedger::check_patience(int64_t step) {
  if (live_.empty() || live_.begin()->first != head_) {
    head_ = live_.empty() ? 0 : live_.begin()->first;
    head_since_ = step;
  }
  longest_at_head_ = std::max(longest_at_head_, step - head_since_);
  const int64_t patience = 512 + 6 * int64_t{limits_.max_num_tokens()};
  expect(step - head_since_ <= patience,
         "request {} starves: it has been the oldest for {} steps and has not ended", head_,
         step - head_since_);
}

void SoakLedger::take(SoakEntry& entry, RequestOutput output) const {
  const SamplingParams& params = entry.request.params;
  expect(output.outputs.size() == static_cast<size_t>(params.n), "it has {} completions",
         output.outputs.size());
  expect(output.finished || params.output_kind != RequestOutputKind::kFinalOnly,
         "it asked for its final output only but got another");
  expect(output.finished || !entry.aborted, "it was aborted but goes on");
  const size_t count = num_tokens(entry.total);
  merge(entry, std::move(output));
  expect(!entry.aborted || params.output_kind == RequestOutputKind::kFinalOnly ||
             num_tokens(entry.total) == count,
         "it got {} tokens after its abort", num_tokens(entry.total) - count);
  check(entry);
}

void SoakLedger::merge(SoakEntry& entry, RequestOutput output) const {
  RequestOutput& total = entry.total;
  const bool first = !std::exchange(entry.shown, true);
  if (!first && entry.request.params.output_kind == RequestOutputKind::kDelta) {
    expect(output.prompt_token_ids.empty(), "a later difference brought the prompt again");
    for (size_t i = 0; i < total.outputs.size(); ++i) {
      expect(total.outputs[i].finish_reason == FinishReason::kNone ||
                 output.outputs[i].token_ids.empty(),
             "completion {} got tokens after its end", i);
    }
    append_delta(total, std::move(output));
    return;
  }
  for (size_t i = 0; i < total.outputs.size(); ++i) {
    const CompletionOutput& before = total.outputs[i];
    const CompletionOutput& now = output.outputs[i];
    expect(now.text.starts_with(before.text) && now.token_ids.size() >= before.token_ids.size() &&
               std::equal(before.token_ids.begin(), before.token_ids.end(), now.token_ids.begin()),
           "completion {} took back what it had given", i);
    expect(before.finish_reason == FinishReason::kNone ||
               (before.finish_reason == now.finish_reason &&
                before.token_ids.size() == now.token_ids.size()),
           "completion {} changed after its end", i);
  }
  total = std::move(output);
}

void SoakLedger::check(SoakEntry& entry) const {
  const SoakRequest& request = entry.request;
  const RequestOutput& total = entry.total;
  expect(total.prompt_token_ids == request.ids, "its output names another prompt");
  expect(total.num_cached_tokens < std::ssize(request.ids),
         "all of its {} prompt tokens came from the cache", request.ids.size());
  bool finished = true;
  entry.num_checked.resize(total.outputs.size());
  for (size_t i = 0; i < total.outputs.size(); ++i) {
    const CompletionOutput& completion = total.outputs[i];
    expect(completion.index == static_cast<int>(i), "completion {} says it is {}", i,
           completion.index);
    check_tokens(entry, completion);
    check_length(entry, completion);
    check_end(entry, completion);
    finished = finished && completion.finish_reason != FinishReason::kNone;
  }
  expect(total.finished == finished, "it is {}finished but its completions are{}",
         total.finished ? "" : "not ", finished ? "" : " not");
  if (!finished) return;
  check_prompt_logprobs(entry);
  if (entry.expected != nullptr) check_repeated(entry);
}

void SoakLedger::check_prompt_logprobs(const SoakEntry& entry) const {
  const SoakRequest& request = entry.request;
  const auto& logprobs = entry.total.prompt_logprobs;
  const size_t count = request.params.prompt_logprobs ? request.ids.size() : 0;
  expect(logprobs.size() == count || (entry.aborted && logprobs.size() < count),
         "it has {} prompt log-probabilities instead of {}", logprobs.size(), count);
  for (size_t i = 0; i < logprobs.size(); ++i) {
    expect(logprobs[i].has_value() == (i > 0),
           "prompt token {} is the first and has log-probabilities, or a later one without", i);
    if (i > 0) check_logprobs(*logprobs[i], *request.params.prompt_logprobs, request.ids[i]);
  }
}

void SoakLedger::check_repeated(const SoakEntry& entry) const {
  for (size_t i = 0; i < entry.total.outputs.size(); ++i) {
    check_repetition(entry.total.outputs[i], entry.expected->outputs[i]);
  }
  const auto& got = entry.total.prompt_logprobs;
  for (size_t i = 0; i < got.size(); ++i) {
    expect(equal(got[i], entry.expected->prompt_logprobs[i]),
           "its repetition gave other log-probabilities for prompt token {}", i);
  }
}

void SoakLedger::check_tokens(SoakEntry& entry, const CompletionOutput& completion) const {
  const SamplingParams& params = entry.request.params;
  const size_t count = completion.token_ids.size();
  expect(completion.logprobs.size() == (params.logprobs ? count : 0),
         "{} tokens have {} log-probabilities", count, completion.logprobs.size());
  size_t& i = entry.num_checked[static_cast<size_t>(completion.index)];
  for (; i < count; ++i) {
    const int32_t id = completion.token_ids[i];
    expect(id >= 0 && id < limits_.vocab_size, "token {} is not in the vocabulary", id);
    if (params.logprobs) check_logprobs(completion.logprobs[i], *params.logprobs, id);
  }
}

void SoakLedger::check_length(const SoakEntry& entry, const CompletionOutput& completion) const {
  const auto count = std::ssize(completion.token_ids);
  const int64_t longest = std::min<int64_t>(entry.request.params.max_tokens,
                                            limits_.max_model_len - std::ssize(entry.request.ids));
  expect(count <= longest, "{} tokens are more than the {} allowed", count, longest);
  expect(completion.finish_reason != FinishReason::kNone || count < longest,
         "all {} tokens are there but no finish reason", count);
  expect(completion.finish_reason != FinishReason::kLength || count == longest,
         "it ended by length with {} tokens of {}", count, longest);
}

void SoakLedger::check_end(const SoakEntry& entry, const CompletionOutput& completion) const {
  const SamplingParams& params = entry.request.params;
  expect(completion.finish_reason != FinishReason::kAbort || entry.aborted,
         "the engine aborted it: {}", describe(completion.stop_reason));
  if (completion.finish_reason != FinishReason::kStop) return;
  expect(std::ssize(completion.token_ids) >= params.min_tokens,
         "it stopped after {} tokens, before min_tokens {}", completion.token_ids.size(),
         params.min_tokens);
  expect(!params.ignore_eos || !params.stop_token_ids.empty() || !params.stop.empty(),
         "it stopped though nothing was to stop it");
  const auto* token_id = std::get_if<int32_t>(&completion.stop_reason);
  if (token_id == nullptr) return;
  expect(*token_id == completion.token_ids.back(), "token {} stopped it but its last one is {}",
         *token_id, completion.token_ids.back());
  expect(!params.ignore_eos || std::ranges::count(params.stop_token_ids, *token_id) > 0,
         "token {} stopped it but is none of its stop tokens", *token_id);
}

void SoakLedger::check_logprobs(const PositionLogprobs& logprobs, int count, int32_t chosen) const {
  expect(std::ssize(logprobs) >= std::max(1, count) && std::ssize(logprobs) <= count + 1,
         "a position has {} log-probabilities where {} were asked for", logprobs.size(), count);
  expect(logprobs[0].token_id == chosen,
         "a position's first log-probability is token {}'s, not {}'s", logprobs[0].token_id,
         chosen);
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const TokenLogprob& token = logprobs[i];
    expect(token.logprob <= 1e-3F && token.rank >= 1 && token.rank <= limits_.vocab_size,
           "token {} has log-probability {} and rank {}", token.token_id, token.logprob,
           token.rank);
    expect(i < 2 || token.logprob <= logprobs[i - 1].logprob,
           "log-probabilities do not descend at token {}", token.token_id);
  }
}

}  // namespace nanovllm
