#include "cli/params_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace nanovllm::cli {

using nlohmann::json;

std::string params_text(const SamplingParams& params) {
  const SamplingParams defaults;
  std::string text =
      fmt::format("temperature={} top_k={} top_p={} min_p={} repetition_penalty={} max_tokens={}",
                  params.temperature, params.top_k, params.top_p, params.min_p,
                  params.repetition_penalty, params.max_tokens);
  const auto add = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) text += fmt::format(" {}={}", name, value);
  };
  const auto add_json = [&](const char* name, const json& value) {
    if (value.empty()) return;
    const auto replace = json::error_handler_t::replace;
    text += fmt::format(" {}={}", name, value.dump(-1, ' ', false, replace));
  };
  add("presence_penalty", params.presence_penalty, defaults.presence_penalty);
  add("frequency_penalty", params.frequency_penalty, defaults.frequency_penalty);
  std::vector<std::string> biases;
  for (const auto& [id, bias] : params.logit_bias)
    biases.push_back(fmt::format("\"{}\":{}", id, bias));
  if (!biases.empty()) text += fmt::format(" logit_bias={{{}}}", fmt::join(biases, ","));
  if (params.seed) text += fmt::format(" seed={}", *params.seed);
  add("min_tokens", params.min_tokens, defaults.min_tokens);
  add("ignore_eos", params.ignore_eos, defaults.ignore_eos);
  add_json("stop", params.stop);
  add_json("stop_token_ids", params.stop_token_ids);
  add_json("bad_words", params.bad_words);
  add("include_stop_str_in_output", params.include_stop_str_in_output,
      defaults.include_stop_str_in_output);
  add("skip_special_tokens", params.skip_special_tokens, defaults.skip_special_tokens);
  return text;
}

}  // namespace nanovllm::cli
