#include "api/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/structured_outputs_json.h"
#include "base/check.h"
#include "engine/sampling_table.h"
#include "io/json.h"

namespace nanovllm {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view wanted, const Json& value) {
  throw_error(ErrorCode::kInvalidArgument, "{} must be {}, got {}", name, wanted, shown(value));
}

template <typename T>
T integer_value(const Json& value, std::string_view name) {
  if (!value.is_number_integer()) refuse(name, "an integer", value);
  const auto number = integer_of(value);
  if (number && std::in_range<T>(*number)) return static_cast<T>(*number);
  using Limits = std::numeric_limits<T>;
  refuse(name, fmt::format("an integer from {} to {}", Limits::min(), Limits::max()), value);
}

void read(const Json& value, std::string_view name, int& out) {
  out = integer_value<int>(value, name);
}

void read(const Json& value, std::string_view name, double& out) {
  if (!value.is_number()) refuse(name, "a number", value);
  out = value.get<double>();
}

void read(const Json& value, std::string_view name, bool& out) {
  if (!value.is_boolean()) refuse(name, "true or false", value);
  out = value.get<bool>();
}

void read(const Json& value, std::string_view name, std::optional<int>& out) {
  out = integer_value<int>(value, name);
}

// A seed: -1 is none, as in vLLM.
void read(const Json& value, std::string_view name, std::optional<int64_t>& out) {
  out = integer_value<int64_t>(value, name);
  if (out == -1) out.reset();
}

void read(const Json& value, std::string_view name, std::optional<std::string>& out) {
  if (!value.is_string()) refuse(name, "a text", value);
  out = value.get<std::string>();
}

void read(const Json& value, std::string_view name, std::vector<int32_t>& out) {
  if (!value.is_array()) refuse(name, "a list of token ids", value);
  out.clear();
  for (const Json& item : value) out.push_back(integer_value<int32_t>(item, name));
}

void read(const Json& value, std::string_view name, std::optional<std::vector<int32_t>>& out) {
  std::vector<int32_t> ids;
  read(value, name, ids);
  out = std::move(ids);
}

// A text or a list of texts, as the OpenAI API has `stop`.
void read(const Json& value, std::string_view name, std::vector<std::string>& out) {
  out.clear();
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) refuse(name, "a text or a list of texts", value);
  for (const Json& item : list) {
    if (!item.is_string()) {
      throw_error(ErrorCode::kInvalidArgument, "{} must hold texts only, got {}", name,
                  shown(item));
    }
    out.push_back(item.get<std::string>());
  }
}

void read(const Json& value, std::string_view name, std::map<int32_t, float>& out) {
  if (!value.is_object()) refuse(name, "an object token id -> bias", value);
  out.clear();
  for (const auto& [key, bias] : value.items()) {
    int32_t id = 0;
    const char* const end = key.data() + key.size();
    const auto [rest, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || rest != end) {
      throw_error(ErrorCode::kInvalidArgument, "{} has the key \"{}\", expected a token id", name,
                  printable(key));
    }
    double number = 0;
    read(bias, name, number);
    out[id] = static_cast<float>(std::clamp(number, -1e6, 1e6));  // far beyond what has an effect
  }
}

void read(const Json& value, std::string_view /*name*/,
          std::optional<StructuredOutputsParams>& out) {
  out = read_structured_outputs(value);
}

std::string text_value(const Json& value, std::string_view name) {
  if (value.is_string()) return value.get<std::string>();
  refuse(fmt::format("\"{}\"", name), "a text", value);
}

const Json& list_value(const Json& value, std::string_view name) {
  if (value.is_array()) return value;
  refuse(fmt::format("\"{}\"", name), "a list", value);
}

void set(SamplingParams& params, const Parameter& parameter, const Json& value) {
  const auto set_member = [&]<typename T>(T SamplingParams::*member) {
    if (!value.is_null() || parameter.null == Null::kRefused) {
      return read(value, parameter.name, params.*member);
    }
    if (parameter.null == Null::kKept) return;
    params.*member = {};
    if constexpr (std::is_same_v<T, int>) params.*member = kAsManyAsFit;
  };
  std::visit(set_member, parameter.member);
}

void add_completion(Json& line, const CompletionOutput& completion) {
  line["text"] = completion.text;
  line["token_ids"] = completion.token_ids;
  line["finish_reason"] = to_string(completion.finish_reason);
  if (const auto* token_id = std::get_if<int32_t>(&completion.stop_reason)) {
    line["stop_reason"] = *token_id;
  }
  if (const auto* text = std::get_if<std::string>(&completion.stop_reason)) {
    line["stop_reason"] = *text;
  }
  if (completion.logprobs.empty()) return;
  Json& positions = line["logprobs"] = Json::array();
  for (const PositionLogprobs& position : completion.logprobs) {
    positions.push_back(to_json(position));
  }
}

}  // namespace

Json to_json(const PositionLogprobs& position) {
  Json object = Json::object();
  for (const TokenLogprob& entry : position) {
    Json& token = object[std::to_string(entry.token_id)];
    token = {{"logprob", entry.logprob}, {"rank", entry.rank}, {"decoded_token", nullptr}};
    if (entry.decoded_token) token["decoded_token"] = *entry.decoded_token;
  }
  return object;
}

void update_sampling_params(SamplingParams& params, const Json& object) {
  if (object.is_null()) return;
  if (!object.is_object()) refuse("sampling_params", "an object", object);
  for (const auto& [name, value] : object.items()) {
    const auto table = sampling_table();
    const auto found = std::ranges::find(table, name, &Parameter::name);
    if (found == table.end()) {
      std::string names;
      for (const Parameter& known : table) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
      }
      throw_error(ErrorCode::kInvalidArgument, "unknown sampling parameter \"{}\"; there are {}",
                  printable(name), names);
    }
    set(params, *found, value);
  }
}

RequestLine parse_request_line(const std::string& line, const SamplingParams& defaults,
                               int64_t number) {
  constexpr int kMaxDepth = 64;
  static constexpr std::string_view kExact[] = {"sampling_params", "response_format"};
  const Json object = parse_ordered_json(line, "the request",
                                         {.max_depth = kMaxDepth,
                                          .allows_repeats = false,
                                          .first_line = number,
                                          .exact_members = kExact});
  if (!object.is_object()) refuse("a request", "a JSON object", object);
  RequestLine request{.params = defaults};
  std::string_view prompt;  // which field it is
  std::string_view part;    // of a chat
  const Json* format = find_member(object, "response_format");
  if (format != nullptr) request.params.structured_outputs.reset();
  for (const auto& [name, value] : object.items()) {
    if (name == "prompt" || name == "prompt_token_ids" || name == "messages") {
      if (!prompt.empty()) {
        throw_error(ErrorCode::kInvalidArgument, "give either \"{}\" or \"{}\", not both", prompt,
                    name);
      }
      prompt = name;
    }
    if (name == "prompt") {
      request.prompt = text_value(value, name);
    } else if (name == "prompt_token_ids") {
      read(value, name, request.prompt.emplace<std::vector<int32_t>>());
    } else if (name == "messages") {
      request.messages = list_value(value, name);
    } else if (name == "tools") {
      part = name;
      if (!value.is_null()) request.tools = list_value(value, name);
    } else if (name == "chat_template_kwargs") {
      part = name;
      if (!value.is_null()) request.chat_template_kwargs = value;
    } else if (name == "custom_id") {
      if (!value.is_null()) request.custom_id = text_value(value, name);
    } else if (name == "sampling_params") {
      update_sampling_params(request.params, value);
    } else if (name == "response_format") {
      continue;
    } else {
      throw_error(
          ErrorCode::kInvalidArgument,
          "unknown field \"{}\"; a request has \"prompt\", \"prompt_token_ids\" or "
          "\"messages\" (with \"tools\" and \"chat_template_kwargs\"), \"sampling_params\", "
          "\"response_format\" and \"custom_id\"",
          printable(name));
    }
  }
  if (format != nullptr) apply_response_format(*format, request.params);
  if (prompt.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "a request needs \"prompt\" (a text), \"prompt_token_ids\" (a list) or "
                "\"messages\" (a list)");
  }
  if (!part.empty() && request.messages.is_null()) {
    throw_error(ErrorCode::kInvalidArgument,
                "\"{}\" is for chat templates: it goes with \"messages\", not with \"{}\"", part,
                prompt);
  }
  return request;
}

std::optional<std::string> custom_id_of(const std::string& line) {
  try {
    const Json object = parse_json(line, "the request");
    const auto found = object.find("custom_id");
    if (found != object.end() && found->is_string()) return found->get<std::string>();
  } catch (const Error&) {
    // Then it has none.
  }
  return std::nullopt;
}

Json result_line(int64_t index, const RequestOutput& output,
                 const std::optional<std::string>& custom_id) {
  Json line = {{"index", index}};
  if (custom_id) line["custom_id"] = *custom_id;
  if (output.outputs.size() == 1) {
    add_completion(line, output.outputs.front());
  } else {
    for (const CompletionOutput& completion : output.outputs) {
      Json item = {{"index", completion.index}};
      add_completion(item, completion);
      line["outputs"].push_back(std::move(item));
    }
  }
  line["num_prompt_tokens"] = output.prompt_token_ids.size();
  line["num_cached_tokens"] = output.num_cached_tokens;
  if (!output.prompt_logprobs.empty()) {
    Json& positions = line["prompt_logprobs"] = Json::array();
    for (const auto& position : output.prompt_logprobs) {
      positions.push_back(position ? to_json(*position) : Json(nullptr));
    }
  }
  return line;
}

}  // namespace nanovllm
