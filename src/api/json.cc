#include "api/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/sampling_table.h"
#include "io/json.h"

namespace nanovllm {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <typename T>
T integer_value(const json& value, std::string_view name) {
  if (!value.is_number_integer()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be an integer, got {}", name, shown(value));
  }
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (std::in_range<T>(number)) return static_cast<T>(number);
  } else {
    const auto number = value.get<int64_t>();
    if (std::in_range<T>(number)) return static_cast<T>(number);
  }
  throw_error(ErrorCode::kInvalidArgument, "{} must be an integer from {} to {}, got {}", name,
              std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), shown(value));
}

void read(const json& value, std::string_view name, int& out) {
  out = integer_value<int>(value, name);
}

void read(const json& value, std::string_view name, double& out) {
  if (!value.is_number()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be a number, got {}", name, shown(value));
  }
  out = value.get<double>();
}

void read(const json& value, std::string_view name, bool& out) {
  if (!value.is_boolean()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be true or false, got {}", name,
                shown(value));
  }
  out = value.get<bool>();
}

void read(const json& value, std::string_view name, std::optional<int>& out) {
  out = integer_value<int>(value, name);
}

// A seed: -1 is none, as in vLLM.
void read(const json& value, std::string_view name, std::optional<int64_t>& out) {
  out = integer_value<int64_t>(value, name);
  if (out == -1) out.reset();
}

void read(const json& value, std::string_view name, std::optional<std::string>& out) {
  if (!value.is_string()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be a text, got {}", name, shown(value));
  }
  out = value.get<std::string>();
}

void read(const json& value, std::string_view name, std::vector<int32_t>& out) {
  if (!value.is_array()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be a list of token ids, got {}", name,
                shown(value));
  }
  out.clear();
  for (const json& item : value) out.push_back(integer_value<int32_t>(item, name));
}

void read(const json& value, std::string_view name, std::optional<std::vector<int32_t>>& out) {
  std::vector<int32_t> ids;
  read(value, name, ids);
  out = std::move(ids);
}

// A text or a list of texts, as the OpenAI API has `stop`.
void read(const json& value, std::string_view name, std::vector<std::string>& out) {
  out.clear();
  const json list = value.is_string() ? json::array({value}) : value;
  if (!list.is_array()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be a text or a list of texts, got {}", name,
                shown(value));
  }
  for (const json& item : list) {
    if (!item.is_string()) {
      throw_error(ErrorCode::kInvalidArgument, "{} must hold texts only, got {}", name,
                  shown(item));
    }
    out.push_back(item.get<std::string>());
  }
}

void read(const json& value, std::string_view name, std::map<int32_t, float>& out) {
  if (!value.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be an object token id -> bias, got {}", name,
                shown(value));
  }
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

std::string text_value(const ordered_json& value, std::string_view name) {
  if (value.is_string()) return value.get<std::string>();
  throw_error(ErrorCode::kInvalidArgument, "\"{}\" must be a text, got {}", name, shown(value));
}

const ordered_json& list_value(const ordered_json& value, std::string_view name) {
  if (value.is_array()) return value;
  throw_error(ErrorCode::kInvalidArgument, "\"{}\" must be a list, got {}", name, shown(value));
}

void set(SamplingParams& params, const Parameter& parameter, const json& value) {
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

void add_completion(ordered_json& line, const CompletionOutput& completion) {
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
  ordered_json& positions = line["logprobs"] = ordered_json::array();
  for (const PositionLogprobs& position : completion.logprobs) {
    positions.push_back(to_json(position));
  }
}

}  // namespace

ordered_json to_json(const PositionLogprobs& position) {
  ordered_json object = ordered_json::object();
  for (const TokenLogprob& entry : position) {
    ordered_json& token = object[std::to_string(entry.token_id)];
    token = {{"logprob", entry.logprob}, {"rank", entry.rank}, {"decoded_token", nullptr}};
    if (entry.decoded_token) token["decoded_token"] = *entry.decoded_token;
  }
  return object;
}

void update_sampling_params(SamplingParams& params, const json& object) {
  if (object.is_null()) return;
  if (!object.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "sampling_params must be an object, got {}",
                shown(object));
  }
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
  const ordered_json object = parse_ordered_json(
      line, "the request", {.max_depth = kMaxDepth, .allows_repeats = false, .first_line = number});
  if (!object.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "a request must be a JSON object, got {}",
                shown(object));
  }
  RequestLine request{.params = defaults};
  std::string_view prompt;  // which field it is
  std::string_view part;    // of a chat
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
    } else {
      throw_error(ErrorCode::kInvalidArgument,
                  "unknown field \"{}\"; a request has \"prompt\", \"prompt_token_ids\" or "
                  "\"messages\" (with \"tools\" and \"chat_template_kwargs\"), \"sampling_params\" "
                  "and \"custom_id\"",
                  printable(name));
    }
  }
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
    const json object = parse_json(line, "the request");
    const auto found = object.find("custom_id");
    if (found != object.end() && found->is_string()) return found->get<std::string>();
  } catch (const Error&) {
    // Then it has none.
  }
  return std::nullopt;
}

ordered_json result_line(int64_t index, const RequestOutput& output,
                         const std::optional<std::string>& custom_id) {
  ordered_json line = {{"index", index}};
  if (custom_id) line["custom_id"] = *custom_id;
  if (output.outputs.size() == 1) {
    add_completion(line, output.outputs.front());
  } else {
    for (const CompletionOutput& completion : output.outputs) {
      ordered_json item = {{"index", completion.index}};
      add_completion(item, completion);
      line["outputs"].push_back(std::move(item));
    }
  }
  line["num_prompt_tokens"] = output.prompt_token_ids.size();
  line["num_cached_tokens"] = output.num_cached_tokens;
  if (!output.prompt_logprobs.empty()) {
    ordered_json& positions = line["prompt_logprobs"] = ordered_json::array();
    for (const auto& position : output.prompt_logprobs) {
      positions.push_back(position ? to_json(*position) : ordered_json(nullptr));
    }
  }
  return line;
}

}  // namespace nanovllm
