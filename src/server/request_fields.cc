#include "server/request_fields.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "api/json.h"
#include "engine/sampling_table.h"
#include "io/json.h"

namespace nanovllm::server {
namespace {

constexpr double kMostExact = 9007199254740992;  // 2^53: no double between it and the next integer

// What asks for something that is not there, where its value is more than nothing.
constexpr std::array kUnsupported = {
    "structured_outputs",    "prompt_embeds", "allowed_token_ids",
    "logprob_token_ids",     "suffix",        "truncate_prompt_tokens",
    "use_beam_search",       "watermarking",  "repetition_detection",
    "thinking_token_budget", "functions",     "audio"};
// What changes no answer of ours.
constexpr std::array kWithoutEffect = {"user",
                                       "metadata",
                                       "store",
                                       "service_tier",
                                       "session_id",
                                       "length_penalty",
                                       "stream_interval",
                                       "spaces_between_special_tokens",
                                       "mm_payload",
                                       "return_mm_kwargs",
                                       "return_token_offsets",
                                       "routed_experts_prompt_start",
                                       "safety_identifier",
                                       "prompt_cache_key"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == -1 ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

void to_whole_numbers(nlohmann::json& value) {
  if (value.is_array()) {
    for (nlohmann::json& item : value) to_whole_numbers(item);
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) <= kMostExact)
      value = static_cast<int64_t>(number);
  }
}

}  // namespace

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (std::in_range<int64_t>(number)) return static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    return value.get<int64_t>();
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) <= kMostExact)
      return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

std::string shown(const Json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

RequestFields::RequestFields(std::string_view body, int max_depth) {
  try {
    body_ = parse_json_body(body, max_depth);
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  if (!body_.is_object()) refuse("", "The body must be a JSON object, got {}.", shown(body_));
}

const Json* RequestFields::find_or_null(std::string_view name) {
  asked_.emplace(name);
  const auto found = body_.find(name);
  return found == body_.end() ? nullptr : &*found;
}

const Json* RequestFields::find(std::string_view name) {
  const Json* value = find_or_null(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json* RequestFields::typed(std::string_view name, bool (Json::*is_type)() const,
                                 const char* expected) {
  const Json* value = find(name);
  if (value != nullptr && !(value->*is_type)())
    refuse(name, "{} must be {}, got {}.", name, expected, shown(*value));
  return value;
}

bool RequestFields::boolean(std::string_view name, bool otherwise) {
  const Json* value = typed(name, &Json::is_boolean, "true or false");
  return value == nullptr ? otherwise : value->get<bool>();
}

std::optional<int64_t> RequestFields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json* value = typed(name, &Json::is_number, "an integer");
  if (value == nullptr) return std::nullopt;
  const auto number = whole_number(*value);
  if (!number) refuse(name, "{} must be an integer of 64 bits, got {}.", name, shown(*value));
  if (*number < min || *number > max)
    refuse(name, "{} must be from {} to {}, got {}.", name, min, max, *number);
  return number;
}

std::optional<std::string> RequestFields::text(std::string_view name) {
  const Json* value = typed(name, &Json::is_string, "a text");
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

const Json* RequestFields::object(std::string_view name) {
  return typed(name, &Json::is_object, "an object");
}

const Json* RequestFields::array(std::string_view name) {
  return typed(name, &Json::is_array, "a list");
}

void RequestFields::read(std::string_view parameter, SamplingParams& params) {
  const Json* value = find_or_null(parameter);
  if (value == nullptr) return;
  nlohmann::json object = nlohmann::json::object();
  nlohmann::json& plain = object[std::string(parameter)] = *value;
  to_whole_numbers(plain);
  try {
    update_sampling_params(params, object);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), std::string(parameter));
  }
}

void RequestFields::read_all(SamplingParams& params, std::initializer_list<std::string_view> but) {
  for (const Parameter& parameter : sampling_table()) {
    if (std::ranges::find(but, parameter.name) == but.end()) read(parameter.name, params);
  }
  if (params.stop.size() > kMaxStops)
    refuse("stop", "stop may hold {} texts, got {}.", kMaxStops, params.stop.size());
}

void RequestFields::refuse_unsupported() {
  if (const Json* format = object("response_format")) {
    const auto type = format->find("type");
    if (type == format->end() || *type != "text")
      refuse("response_format",
             "response_format of another type than \"text\" is not supported yet; leave it out.");
  }
  for (const auto& [name, value] : body_.items()) {
    const bool is_unsupported =
        name.starts_with("guided_") || std::ranges::find(kUnsupported, name) != kUnsupported.end();
    if (!is_unsupported) continue;
    asked_.insert(name);
    if (!says_nothing(value))
      refuse(printable(name), "{} is not supported yet; leave it out.", printable(name));
  }
  if (integer("best_of").value_or(1) > 1)
    refuse("best_of", "best_of above 1 is not supported; ask for n completions instead.");
  for (const char* name : kWithoutEffect) asked_.emplace(name);
}

void RequestFields::check_model(const ServedModel& model) {
  const std::string name = text("model").value_or("");
  if (name.empty() || std::ranges::find(model.names, name) != model.names.end()) return;
  throw ApiError(404,
                 fmt::format("The model `{}` does not exist. Valid aliases: {}.", printable(name),
                             fmt::join(model.names, ", ")),
                 "model");
}

std::vector<std::string> RequestFields::unknown() const {
  constexpr size_t kMost = 20;  // in a line of a log
  std::vector<std::string> names;
  for (const auto& [name, value] : body_.items()) {
    if (names.size() < kMost && !asked_.contains(name)) names.push_back(printable(name));
  }
  return names;
}

}  // namespace nanovllm::server
