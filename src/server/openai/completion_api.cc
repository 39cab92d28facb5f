// /v1/completions
#include <nlohmann/json.hpp>

#include "nanovllm/tokenizer.h"
#include "server/openai/answer.h"
#include "server/openai/prompt_tokens.h"

namespace nanovllm::server {
namespace {

constexpr int kDefaultMaxTokens = 16;
constexpr const char* kPromptKinds =
    "prompt must be a text, a list of texts, a list of token ids, or a list of such lists";

std::vector<Prompt> prompts_of(const Json* value, int max_num_prompts) {
  if (value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty()) ||
      (value->is_array() && value->empty())) {
    refuse("prompt", "prompt must be given and not be empty.");
  }
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) refuse("prompt", "{}, got {}.", kPromptKinds, shown(*value));
  if (value->front().is_number()) return {token_ids_of(*value, "prompt", INT32_MAX)};
  if (std::cmp_greater(value->size(), max_num_prompts)) {
    refuse("prompt", "prompt list length {} exceeds the maximum allowed count of {}.",
           value->size(), max_num_prompts);
  }
  std::vector<Prompt> prompts;
  for (const Json& item : *value) {
    if (item.type() != value->front().type() || (!item.is_string() && !item.is_array())) {
      refuse("prompt", "{}, got {} in the list.", kPromptKinds, shown(item));
    }
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else {
      prompts.emplace_back(token_ids_of(item, "prompt", INT32_MAX));
    }
  }
  return prompts;
}

class Completion final : public Answer {
 public:
  Completion(const RequestFields& fields, const ServedModel& served, const std::string& id)
      : Answer(fields, served, {"cmpl-", "text_completion", "text_completion"}, id) {
    SamplingParams params = served.defaults;
    params.max_tokens = kDefaultMaxTokens;
    fields.read_all(params, {"max_tokens"});
    echo_ = fields.boolean("echo");
    keeps_prompt_ids_ = keeps_prompt_ids_ || echo_;
    const auto max_tokens = fields.integer("max_tokens");
    check_max_tokens("max_tokens", max_tokens);
    prompt_only_ = echo_ && max_tokens == 0;
    if (prompt_only_) {
      params.max_tokens = 1;  // an engine generates one at least
    } else if (max_tokens) {
      fields.read("max_tokens", params);
    }
    if (stream && params.prompt_logprobs.value_or(0) != 0) {
      refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
    }
    if (echo_ && !params.prompt_logprobs) params.prompt_logprobs = params.logprobs;
    num_top_ = params.logprobs;
    const bool add_special_tokens = fields.boolean("add_special_tokens", true);
    const std::vector<Prompt> prompts = prompts_of(fields.find("prompt"), served.max_num_prompts);
    fields.check_model();
    for (const Prompt& prompt : prompts) add_prompt(prompt, add_special_tokens, params);
    states_.resize(choices().size());
  }

 private:
  // Of a whole answer, or of one chunk.
  struct State {
    std::string text = {};
    bool begun = false;
    bool is_first = false;  // chunk
  };

  void add_prompt(const Prompt& prompt, bool add_special_tokens, const SamplingParams& params) {
    const auto* text = std::get_if<std::string>(&prompt);
    std::vector<int32_t> ids = text != nullptr ? encode_prompt(*text, add_special_tokens, model())
                                               : std::get<std::vector<int32_t>>(prompt);
    check_length(ids.size(), model());
    std::string shown_text;
    if (echo_ && !return_token_ids_) {
      if (text != nullptr) {
        shown_text = *text;
      } else if (const Tokenizer* tokenizer = model().preparer.tokenizer) {
        shown_text = tokenizer->decode(ids, false);
      }
    }
    prepare(std::move(ids), std::move(shown_text), params);
  }

  void take(size_t choice, const RequestDelta& delta) override {
    begin(choice);
    if (prompt_only_) return;
    State& state = states_[choice];
    state.text += delta.text;
    for (size_t i = 0; num_top_ && i < delta.logprobs.size(); ++i) {
      choices()[choice].logprobs.append(delta.logprobs[i]);
    }
  }

  void end(size_t choice) override { begin(choice); }

  // Before the first token comes the prompt.
  void begin(size_t choice) {
    State& state = states_[choice];
    if (std::exchange(state.begun, true)) return;
    state.is_first = true;
    if (!echo_) return;
    state.text += prompt_of(choice).text;
  }

  // Positions that are shown before the choice's own, in a whole answer or in one chunk.
  size_t num_prompt_positions(size_t choice) {
    const bool shows_prompt = echo_ && states_[choice].is_first;
    return shows_prompt ? prompt_of(choice).logprobs.size() : 0;
  }

  size_t num_positions(size_t choice) {
    return num_prompt_positions(choice) + choices()[choice].logprobs.size();
  }

  void append_logprobs(size_t choice, size_t position, LogprobText& text, CompletionLogprobs& lists,
                       std::string CompletionLogprobs::*only = nullptr) {
    const size_t num_before = num_prompt_positions(choice);
    const bool is_own = position >= num_before;
    const PackedLogprobs& all = is_own ? choices()[choice].logprobs : prompt_of(choice).logprobs;
    const bool wants_all = only == nullptr || only == &CompletionLogprobs::top_logprobs;
    const auto logprobs = all.at(is_own ? position - num_before : position,
                                 model().preparer.tokenizer, wants_all ? SIZE_MAX : 1);
    const int32_t id = is_own ? logprobs->front().token_id : prompt_of(choice).token_ids[position];
    text.append_completion(id, logprobs ? &*logprobs : nullptr, *num_top_, lists, only);
  }

  // Of a chunk.
  std::string logprobs_json(size_t choice) {
    if (!num_top_) return "null";
    CompletionLogprobs lists;
    for (size_t i = 0; i < num_positions(choice); ++i) {
      append_logprobs(choice, i, choices()[choice].logprob_text, lists);
    }
    return lists.json();
  }

  // The lists stand behind each other, so that the positions are gone through once for each.
  void add_logprobs(size_t choice) {
    if (!num_top_) return add_text("null");
    const char* before = "{";
    for (const auto& [name, list] : {std::pair{"text_offset", &CompletionLogprobs::text_offset},
                                     {"token_logprobs", &CompletionLogprobs::token_logprobs},
                                     {"tokens", &CompletionLogprobs::tokens},
                                     {"top_logprobs", &CompletionLogprobs::top_logprobs}}) {
      add_text(fmt::format(R"({}"{}":[)", std::exchange(before, ","), name));
      add_list(num_positions(choice),
               [this, choice, list = list, text = choices()[choice].logprob_text](
                   size_t i, std::string& out) mutable {
                 CompletionLogprobs one;
                 append_logprobs(choice, i, text, one, list);
                 out += one.*list;
               });
      add_text("]");
    }
    add_text("}");
  }

  std::string take_chunk(size_t choice) override {
    const bool shows_prompt = states_[choice].is_first && (return_token_ids_ || echo_);
    std::string json =
        fmt::format(R"({{{}{}{},"prompt_token_ids":{},"token_ids":{}}})", first_members(choice),
                    logprobs_json(choice), last_members(choice),
                    shows_prompt ? json_of(prompt_of(choice).token_ids) : "null",
                    token_ids_json(choices()[choice].token_ids));
    states_[choice] = {.begun = true};
    return json;
  }

  // Those before the log-probabilities, and those behind them.
  std::string first_members(size_t choice) const {
    return fmt::format(R"("index":{},"text":{},"logprobs":)", choice,
                       json_text(states_[choice].text));
  }

  std::string last_members(size_t index) {
    const Choice& choice = choices()[index];
    const std::string reason = to_string(choice.finish_reason);
    return fmt::format(R"(,"finish_reason":{},"stop_reason":{})",
                       reason.empty() ? "null" : json_text(reason), json_of(choice.stop_reason));
  }

  void add_choice(size_t choice) override {
    const PromptFacts& prompt = prompt_of(choice);
    add_text("{" + first_members(choice));
    add_logprobs(choice);
    add_text(fmt::format(R"({},"token_ids":{},"prompt_logprobs":)", last_members(choice),
                         token_ids_json(choices()[choice].token_ids)));
    add_prompt_logprobs(prompt);
    add_text(fmt::format(R"(,"prompt_token_ids":{},"routed_experts":null}})",
                         token_ids_json(prompt.token_ids)));
  }

  void add_members() override {
    add_text(R"(,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)");
  }

  bool echo_ = false;
  bool prompt_only_ = false;    // no token is asked for
  std::optional<int> num_top_;  // log-probabilities of a token besides its own; none = none at all
  std::vector<State> states_;   // a choice
};

}  // namespace

std::unique_ptr<ApiCall> parse_completion(std::string_view body, const ServedModel& model,
                                          const std::string& id) {
  return std::make_unique<Completion>(RequestFields(body, "CompletionRequest", model), model, id);
}

}  // namespace nanovllm::server
