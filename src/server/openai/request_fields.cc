#include "server/openai/request_fields.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "api/json.h"
#include "api/structured_outputs_json.h"
#include "engine/sampling_table.h"
#include "io/json.h"
#include "server/openai/prompt_tokens.h"

namespace nanovllm::server {
namespace {

// What asks for something that is not there, where its value is more than nothing.
// clang-format off
constexpr std::string_view kUnsupported[] = {
    "prompt_embeds", "logprob_token_ids", "suffix", "truncate_prompt_tokens", "use_beam_search",
    "watermarking", "repetition_detection", "functions", "audio", "logits_processors"};
// What changes no answer of ours.
constexpr std::string_view kWithoutEffect[] = {
    "user", "metadata", "store", "service_tier", "session_id", "safety_identifier",
    "prompt_cache_key", "length_penalty", "best_of", "stream_interval",
    "spaces_between_special_tokens", "mm_payload", "return_mm_kwargs", "return_token_offsets",
    "routed_experts_prompt_start"};
// clang-format on

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == -1 ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

// What other APIs and servers call what an answer must follow; one of our names is known where it
// means something. vLLM's older names begin with "guided_".
constexpr std::string_view kConstraints[] = {
    "structured_outputs", "response_format", "output_format", "text",  "output_config",
    "structured_output",  "json_schema",     "grammar",       "regex", "ebnf"};

bool is_constraint(std::string_view name) {
  return name.starts_with("guided_") ||
         std::ranges::find(kConstraints, name) != std::end(kConstraints);
}

// Some of them say other things too, or that an answer is free.
bool binds_nothing(std::string_view name, const Json& value) {
  if (says_nothing(value)) return true;
  const Json* format = &value;
  if (name == "text" || name == "output_config") {
    format = find_member(value, "format");
    if (format == nullptr) return true;
  }
  const Json* type = find_member(*format, "type");
  return type != nullptr && *type == "text";
}

bool is_unsupported(std::string_view name) {
  return std::ranges::find(kUnsupported, name) != std::end(kUnsupported);
}

struct JsonType {
  std::string_view name;
  const char* words;
  bool (*is)(const Json& value);
};

constexpr JsonType kJsonTypes[] = {
    {"boolean", "true or false", [](const Json& value) { return value.is_boolean(); }},
    {"integer", "an integer",
     [](const Json& value) { return value.is_number_integer() || whole_number(value); }},
    {"number", "a number", [](const Json& value) { return value.is_number(); }},
    {"string", "a text", [](const Json& value) { return value.is_string(); }},
    {"array", "a list", [](const Json& value) { return value.is_array(); }},
    {"object", "an object", [](const Json& value) { return value.is_object(); }}};

// What is wrong with a value, such as "[0].role must be a text, got 3."; empty = nothing.
std::string complaint(const Json& value, const Json& schema) {
  const auto type = schema.find("type");
  const bool may_be_null = type != schema.end() && type->is_array();
  if (may_be_null && value.is_null()) return {};
  if (type != schema.end()) {
    const Json& name = may_be_null ? type->front() : *type;
    const JsonType& wanted =
        *std::ranges::find(kJsonTypes, name.get<std::string_view>(), &JsonType::name);
    if (!wanted.is(value)) {
      // Of integers, JSON readers make a double for their size alone.
      const bool is_too_large =
          name == "integer" && value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
      return fmt::format(" must be {}{}, got {}.", wanted.words, is_too_large ? " of 64 bits" : "",
                         shown(value));
    }
  }
  const auto allowed = schema.find("enum");
  if (allowed != schema.end() && std::ranges::find(*allowed, value) == allowed->end()) {
    return fmt::format(" must be one of {}, got {}.", allowed->dump(), shown(value));
  }
  if (!value.is_structured()) return {};
  if (value.is_array() && value.size() < schema.value("minItems", size_t{0})) {
    return " must not be empty.";
  }
  if (const size_t most = schema.value("maxProperties", value.size()); value.size() > most) {
    return fmt::format(" must not have more than {} members.", most);
  }
  if (const auto required = schema.find("required"); required != schema.end()) {
    for (const Json& name : *required) {
      const auto& text = name.get_ref<const std::string&>();
      if (value.value(text, Json()).is_null()) return fmt::format(".{} must be given.", text);
    }
  }
  if (const auto members = schema.find("properties"); members != schema.end()) {
    for (const auto& [name, member] : value.items()) {
      const auto found = members->find(name);
      const std::string what = found == members->end() ? "" : complaint(member, *found);
      if (!what.empty()) return fmt::format(".{}{}", name, what);
    }
  }
  if (const auto item = schema.find("items"); item != schema.end()) {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string what = complaint(value[i], *item);
      if (!what.empty()) return fmt::format("[{}]{}", i, what);
    }
  }
  return {};
}

void to_whole_numbers(Json& value) {
  if (value.is_array()) {
    for (Json& item : value) to_whole_numbers(item);
  } else if (const auto number = value.is_number_float() ? whole_number(value) : std::nullopt) {
    value = *number;
  }
}

// Each is a token at least.
size_t most_messages(const ServedModel& model) {
  return static_cast<size_t>(std::max(model.preparer.info.max_model_len, 1));
}

Json bounded_body(std::string_view body, const char* schema, const ServedModel& model) {
  const char* turns = body_schemas()[schema]["properties"].contains("input") ? "input" : "messages";
  JsonListBound bounds[] = {{.name = turns, .most = most_messages(model)},
                            {.name = "stop", .most = kMaxStops},
                            {.name = "bad_words", .most = kMaxBadWords}};
  Json json = parse_body(body, model, bounds);
  const auto& [messages, stop, bad_words] = bounds;
  check_num_messages(messages.size, model, turns);
  if (stop.size > kMaxStops) {
    refuse("stop", "stop may hold {} texts, got {}.", kMaxStops, stop.size);
  }
  if (bad_words.size > kMaxBadWords) {
    refuse("bad_words", "bad_words may hold {} texts, got {}.", kMaxBadWords, bad_words.size);
  }
  return json;
}

}  // namespace

std::optional<int64_t> whole_number(const Json& value) {
  constexpr double kMostExact = 9007199254740992;  // 2^53: no double between it and the next
  if (!value.is_number_float()) return integer_of(value);
  const auto number = value.get<double>();
  const bool is_whole = std::trunc(number) == number && std::abs(number) <= kMostExact;
  return is_whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

std::vector<int32_t> token_ids_of(const Json& list, const char* param, int32_t most) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const auto id = whole_number(item);
    if (!id || *id < 0 || *id > most) {
      refuse(param, "{} must hold token ids from 0 to {}, got {}.", param, most, shown(item));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Json parse_body(std::string_view body, const ServedModel& model, std::span<JsonListBound> bounds) {
  Json json;
  try {
    json = parse_json_body(body, model.max_json_depth, bounds);
  } catch (const Error& error) {
    const std::string_view what = error.what();
    const bool is_too_deep = what.ends_with(" levels");
    throw ApiError(400,
                   fmt::format("{}{}", what, is_too_deep ? " (--max-json-depth of serve)" : ""));
  }
  if (!json.is_object()) refuse("", "The body must be a JSON object, got {}.", shown(json));
  return json;
}

void check_model_name(const std::string& name, const ServedModel& model) {
  if (std::ranges::find(model.names, name) != model.names.end()) return;
  throw ApiError(404,
                 fmt::format("The model `{}` does not exist. Valid aliases: {}.", printable(name),
                             fmt::join(model.names, ", ")),
                 "model");
}

void check_num_messages(size_t num_messages, const ServedModel& model, const char* param) {
  const size_t most = most_messages(model);
  if (num_messages <= most) return;
  throw ApiError(400,
                 fmt::format("This model's maximum context length is {} tokens. However, your chat "
                             "has {} messages, each of which takes one token at least. Please "
                             "reduce the number of messages.",
                             most, num_messages),
                 param, kContextExceeded);
}

RequestFields::RequestFields(std::string_view body, const char* schema, const ServedModel& model)
    : RequestFields(model, schema, bounded_body(body, schema, model)) {}

RequestFields::RequestFields(const ServedModel& model, const char* schema, Json body)
    : model_(model), properties_(body_schemas()[schema]["properties"]), body_(std::move(body)) {
  const std::string what = complaint(body_, body_schemas()[schema]);
  if (what.empty()) return;
  // In vLLM's manner the field alone; OpenAI's newer API names its place.
  const bool tells_place = properties_.contains("input");
  const size_t end = what.find_first_of(tells_place ? " " : ".[ ", 1);
  throw ApiError(400, what.substr(1), what.substr(1, end - 1));
}

const Json* RequestFields::find(std::string_view name) const { return find_member(body_, name); }

bool RequestFields::boolean(std::string_view name, bool otherwise) const {
  const Json* value = find(name);
  return value == nullptr ? otherwise : value->get<bool>();
}

std::optional<int64_t> RequestFields::integer(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = whole_number(*value);
  if (!number) refuse(name, "{} must be an integer of 64 bits, got {}.", name, shown(*value));
  return number;
}

std::optional<std::string> RequestFields::text(std::string_view name) const {
  const Json* value = find(name);
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

const char* RequestFields::constraint() const {
  const Json* format = find("response_format");
  const bool is_text = format == nullptr || format->value("type", Json()) == "text";
  return is_text ? "structured_outputs" : "response_format";
}

namespace {

std::string sentence(std::string what) {
  if (!what.ends_with('.')) what += '.';
  return what;
}

}  // namespace

void RequestFields::read(std::string_view parameter, SamplingParams& params) const {
  const auto found = body_.find(parameter);
  if (found == body_.end()) return;
  Json value = *found;
  to_whole_numbers(value);
  try {
    update_sampling_params(params, {{std::string(parameter), std::move(value)}});
  } catch (const Error& error) {
    throw ApiError(400, sentence(error.what()), std::string(parameter));
  }
}

void RequestFields::read_all(SamplingParams& params,
                             std::initializer_list<std::string_view> but) const {
  for (const Parameter& parameter : sampling_table()) {
    if (std::ranges::find(but, parameter.name) == but.end()) read(parameter.name, params);
  }
  if (find("structured_outputs") != nullptr && params.structured_outputs) {
    try {
      params.structured_outputs->validate();
    } catch (const Error& error) {
      throw ApiError(400, error.what(), "structured_outputs");
    }
  }
  const Json* format = find("response_format");
  if (format == nullptr) return;
  try {
    apply_response_format(*format, params);
  } catch (const Error& error) {
    throw ApiError(400, sentence(error.what()), "response_format");
  }
}

void RequestFields::refuse_unsupported() const {
  const Json* best_of = find("best_of");
  const Json* n = find("n");
  if (best_of != nullptr && *best_of != 1 && (n == nullptr || *best_of != *n)) {
    refuse("best_of",
           "best_of must be n, as all completions are answered, got {}; ask for n completions "
           "instead.",
           shown(*best_of));
  }
  for (const auto& [name, value] : body_.items()) {
    if (is_unsupported(name) && !says_nothing(value)) {
      refuse(printable(name), "{0} is not supported yet; leave it out.", printable(name));
    }
  }
}

void RequestFields::refuse_other_constraints(std::string_view ours) const {
  for (const auto& [name, value] : body_.items()) {
    if (properties_.contains(name) || !is_constraint(name) || binds_nothing(name, value)) continue;
    refuse(printable(name), "{} is not known; use {}.", printable(name), ours);
  }
}

void RequestFields::check_model() const {
  const std::string name = text("model").value_or("");
  if (!name.empty()) check_model_name(name, model_);
}

std::vector<std::string> RequestFields::unknown() const {
  constexpr size_t kMost = 20;  // in a line of a log
  std::vector<std::string> names;
  for (const auto& [name, value] : body_.items()) {
    const bool is_known = properties_.contains(name) ||
                          (is_unsupported(name) && says_nothing(value)) ||
                          (is_constraint(name) && says_nothing(value)) ||
                          std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect);
    if (names.size() < kMost && !is_known) names.push_back(printable(name));
  }
  return names;
}

}  // namespace nanovllm::server
