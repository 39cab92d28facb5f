#include "server/openai/answer.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "api/json.h"
#include "base/check.h"
#include "server/openai/prompt_tokens.h"

namespace nanovllm::server {
namespace {

constexpr int kMaxCompletions = 16384;  // of a call, over its prompts

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string json_text(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_of(const std::vector<int32_t>& ids) {
  return fmt::format("[{}]", fmt::join(ids, ","));
}

std::string json_of(const StopReason& reason) {
  if (const auto* id = std::get_if<int32_t>(&reason)) return std::to_string(*id);
  if (const auto* text = std::get_if<std::string>(&reason)) return json_text(*text);
  return "null";
}

void append_in_one_line(std::string& out, std::string_view json) {
  constexpr std::pair<std::string_view, std::string_view> kLineEnds[] = {
      {"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}};
  constexpr const char* kFirstBytes = "\xc2\xe2";
  size_t from = 0;  // of what was not appended yet
  for (size_t at = 0; (at = json.find_first_of(kFirstBytes, at)) != json.npos; ++at) {
    for (const auto& [character, escape] : kLineEnds) {
      if (!json.substr(at).starts_with(character)) continue;
      out.append(json.substr(from, at - from)).append(escape);
      from = at + character.size();
    }
  }
  out.append(json.substr(from));
}

std::string event_of(std::string_view json, std::string_view name) {
  std::string event = name.empty() ? "data: " : fmt::format("event: {}\ndata: ", name);
  append_in_one_line(event, json);
  return event + "\n\n";
}

Answer::Answer(const RequestFields& fields, const ServedModel& model, const Names& names,
               const std::string& id)
    : model_(model), constraint_(fields.constraint()) {
  fields.refuse_unsupported();
  fields.refuse_other_constraints("structured_outputs, or response_format");
  ignored_fields = fields.unknown();
  stream = fields.boolean("stream");
  const Json* options = fields.find("stream_options");
  if (options != nullptr && !options->empty() && !stream) {
    refuse("stream_options", "Stream options can only be defined when `stream=True`.");
  }
  const auto option = [&](const char* name) {
    return model.enable_force_include_usage ||
           (options != nullptr && options->value(name, Json()) == true);
  };
  include_usage_ = option("include_usage");
  continuous_usage_ = include_usage_ && option("continuous_usage_stats");
  keeps_prompt_ids_ = return_token_ids_ = fields.boolean("return_token_ids");
  return_as_token_ids_ =
      fields.boolean("return_tokens_as_token_ids", model.return_tokens_as_token_ids);
  const std::string request_id = fields.text("request_id").value_or(id);
  head_ = fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)",
                      json_text(names.id_prefix + request_id),
                      stream ? names.chunk_object : names.object, now(),
                      json_text(model.names.front()));
}

void Answer::check_max_tokens(const char* name, std::optional<int64_t> max_tokens) const {
  const int most = model_.preparer.info.max_model_len;
  if (max_tokens.value_or(0) <= most) return;
  refuse(name, "{}={} cannot be greater than max_model_len={}. Please request fewer output tokens.",
         name, *max_tokens, most);
}

void Answer::prepare(std::vector<int32_t> token_ids, std::string text,
                     const SamplingParams& params) {
  requests.push_back(prepare_request(token_ids, params, model_, constraint_));
  wants_events_soon = wants_events_soon || params.logprobs || params.prompt_logprobs;
  num_completions_ = params.n;
  if (std::cmp_greater((prompts_.size() + 1) * static_cast<size_t>(num_completions_),
                       kMaxCompletions)) {
    refuse("n", "A request may have {} completions over all of its prompts; ask for fewer.",
           kMaxCompletions);
  }
  PromptFacts& facts = prompts_.emplace_back();
  facts.text = std::move(text);
  facts.num_tokens = token_ids.size();
  if (keeps_prompt_ids_) facts.token_ids = std::move(token_ids);
  num_open_ += num_completions_;
  choices_.resize(prompts_.size() * static_cast<size_t>(num_completions_),
                  Choice(LogprobText(model_.preparer.tokenizer, return_as_token_ids_)));
}

std::string Answer::on_events(size_t prompt, std::span<const EngineEvent> events) {
  if (error_) return {};
  PromptFacts& facts = prompts_[prompt];
  std::string out;
  std::set<size_t> changed;  // choices
  const auto change = [&](int completion) {
    if (!std::exchange(facts.begun, true) && stream) out += first_chunks(prompt);
    const auto first = prompt * static_cast<size_t>(num_completions_);
    return *changed.insert(first + static_cast<size_t>(completion)).first;
  };
  for (const EngineEvent& event : events) {
    if (const auto* logprobs = std::get_if<PromptLogprobs>(&event)) {
      for (const auto& position : logprobs->positions) {
        if (position) {
          facts.logprobs.append(*position);
        } else {
          facts.logprobs.append_none();
        }
      }
    } else if (const auto* delta = std::get_if<RequestDelta>(&event)) {
      const size_t index = change(delta->index);
      Choice& choice = choices_[index];
      choice.num_tokens += delta->token_ids.size();
      choice.token_ids.insert(choice.token_ids.end(), delta->token_ids.begin(),
                              delta->token_ids.end());
      take(index, *delta);
    } else if (const auto* over = std::get_if<RequestEnd>(&event)) {
      const size_t index = change(over->index);
      choices_[index].finish_reason = over->finish_reason;
      choices_[index].stop_reason = over->stop_reason;
      facts.num_cached_tokens = over->num_cached_tokens;
      --num_open_;
      end(index);
    } else if (const auto* error = std::get_if<RequestError>(&event)) {
      error_ = *error;
    }
  }
  if (!stream) return {};
  for (const size_t index : changed) {
    const std::string json = take_chunk(index);
    choices_[index].token_ids.clear();
    choices_[index].logprobs.clear();
    const bool is_last = choices_[index].finish_reason != FinishReason::kNone;
    if (!json.empty()) out += chunk(index, json, is_last);
  }
  if (error_) out += event_of(error_body(status_of(error_->code), error_->message));
  return out;
}

bool Answer::is_over() const { return error_.has_value() || num_open_ <= 0; }

std::optional<ApiError> Answer::error() const {
  if (!error_) return {};
  return ApiError(status_of(error_->code), error_->message);
}

std::string Answer::end_of_stream() const {
  std::string out;
  if (include_usage_ && !error_) {
    out = fmt::format("{}],\"usage\":{}", head_, total_usage(false));
    if (!model_.system_fingerprint.empty()) {
      out += ",\"system_fingerprint\":" + json_text(model_.system_fingerprint);
    }
    out = event_of(out + "}");
  }
  return out + event_of("[DONE]");
}

void Answer::add_text(std::string_view text) {
  if (parts_.empty() || parts_.back().more) parts_.emplace_back();
  parts_.back().text += text;
}

void Answer::add_list(size_t count, std::function<void(size_t i, std::string& out)> append) {
  if (count == 0) return;
  add_text("");
  parts_.back().more = [count, append = std::move(append), i = size_t{0}](std::string& out,
                                                                          size_t end) mutable {
    while (i < count && out.size() < end) {
      if (i > 0) out += ',';
      append(i++, out);
    }
    return i < count;
  };
}

void Answer::add_whole() {
  add_text(head_);
  for (size_t choice = 0; choice < choices_.size(); ++choice) {
    if (choice > 0) add_text(",");
    add_choice(choice);
  }
  add_text(
      fmt::format(R"(],"service_tier":null,"system_fingerprint":{},"usage":{})",
                  model_.system_fingerprint.empty() ? "null" : json_text(model_.system_fingerprint),
                  total_usage(true)));
  add_members();
  add_text("}");
}

bool Answer::next_piece(std::string& out) {
  if (stream) {
    out += end_of_stream();
    return false;
  }
  if (error_) throw ApiError(*error());
  if (parts_.empty()) add_whole();
  const size_t end = out.size() + kAnswerPiece;
  while (next_part_ < parts_.size() && out.size() < end) {
    Part& part = parts_[next_part_];
    const auto piece = std::string_view(part.text).substr(part.num_sent, end - out.size());
    out += piece;
    part.num_sent += piece.size();
    if (part.num_sent < part.text.size()) break;
    part.text = {};
    part.num_sent = 0;
    if (!part.more || !part.more(out, end)) ++next_part_;
  }
  return next_part_ < parts_.size();
}

std::string Answer::chunk(size_t choice, const std::string& json, bool is_last,
                          std::string_view more) const {
  std::string out = fmt::format("{}{}]", head_, json);
  if (continuous_usage_) {
    const size_t num_prompt_tokens =
        prompts_[choice / static_cast<size_t>(num_completions_)].num_tokens;
    const std::string details = completion_details(choice);
    out += ",\"usage\":" + usage(num_prompt_tokens, choices_[choice].num_tokens);
    if (!details.empty()) out += ",\"completion_tokens_details\":" + details;
    out += '}';
  }
  if (is_last && !include_usage_ && !model_.system_fingerprint.empty()) {
    out += ",\"system_fingerprint\":" + json_text(model_.system_fingerprint);
  }
  out += more;
  return event_of(out + "}");
}

// Without its closing brace.
std::string Answer::usage(size_t num_prompt_tokens, size_t num_tokens) const {
  return fmt::format(R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{})",
                     num_prompt_tokens, num_prompt_tokens + num_tokens, num_tokens);
}

std::string Answer::total_usage(bool is_whole) const {
  size_t num_prompt_tokens = 0, num_tokens = 0;
  for (const PromptFacts& prompt : prompts_) num_prompt_tokens += prompt.num_tokens;
  for (const Choice& choice : choices_) num_tokens += choice.num_tokens;
  std::string out = usage(num_prompt_tokens, num_tokens);
  if (model_.enable_prompt_tokens_details) {
    out += fmt::format(R"(,"prompt_tokens_details":{{"cached_tokens":{}{}}})",
                       prompts_.back().num_cached_tokens,
                       is_whole ? R"(,"created_cache_tokens":null,"multimodal_tokens":null)" : "");
  } else if (is_whole) {
    out += ",\"prompt_tokens_details\":null";
  }
  // A chunk leaves out what is null.
  const std::string details = completion_details({});
  if (is_whole || !(details.empty() || details == "null")) {
    out += ",\"completion_tokens_details\":" + (details.empty() ? "null" : details);
  }
  return out + '}';
}

std::string Answer::token_ids_json(const std::vector<int32_t>& ids) const {
  return return_token_ids_ ? json_of(ids) : "null";
}

void Answer::add_prompt_logprobs(const PromptFacts& prompt) {
  if (prompt.logprobs.empty()) return add_text("null");
  add_text("[");
  add_list(prompt.logprobs.size(), [this, &prompt](size_t i, std::string& out) {
    const auto position = prompt.logprobs.at(i, model_.preparer.tokenizer);
    Json entry = position ? to_json(*position) : Json(nullptr);
    for (Json& token : entry) {
      Json& logprob = token["logprob"];
      logprob = std::max(-9999.0, logprob.get<double>());
    }
    out += entry.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  add_text("]");
}

}  // namespace nanovllm::server
