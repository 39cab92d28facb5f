#include "cli/params_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "api/structured_outputs_json.h"

namespace nanovllm::cli {
namespace {

using nlohmann::json;

// Numbers and booleans, as people write them.
template <typename T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string text_of(const std::vector<T>& value) {
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}
std::string text_of(const StructuredOutputsParams& value) {
  return to_json(value).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "null";
}
std::string text_of(const std::map<int32_t, float>& value) {
  std::string biases;
  for (const auto& [id, bias] : value) {
    biases += fmt::format("{}\"{}\":{}", biases.empty() ? "" : ",", id, bias);
  }
  return fmt::format("{{{}}}", biases);
}

}  // namespace

std::string value_text(const SamplingParams& params, const Parameter& parameter) {
  return std::visit([&](auto member) { return text_of(params.*member); }, parameter.member);
}

std::string params_text(const SamplingParams& params) {
  const SamplingParams defaults;
  std::string text;
  for (const Parameter& parameter : sampling_table()) {
    const auto add = [&](auto member) {
      if (parameter.use != Use::kOften && params.*member == defaults.*member) return;
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", parameter.name,
                          value_text(params, parameter));
    };
    std::visit(add, parameter.member);
  }
  return text;
}

}  // namespace nanovllm::cli
