// Any bytes as a chat template, and behind the first zero byte as the JSON of its messages. It must
// render within the limits, the same every time, or be refused with line and column.
#include <nlohmann/json.hpp>

#include "fuzzing.h"
#include "text/jinja/jinja.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;

const Json& default_messages() {
  static const Json kMessages = Json::parse(R"([
      {"role": "system", "content": ""}, {"role": "user", "content": " Grüße 👋\n<b> "},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": {"a": [1, 2.5, true], "b": {"c": "'\"\\"}}}}]},
      {"role": "tool", "content": [{"type": "text", "text": "42"}]}])");
  return kMessages;
}

void check(std::string_view source, const Json& messages) {
  jinja::RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.max_live_bytes = 1 << 22;
  options.limits.max_output_bytes = 1 << 18;
  options.now = std::tm{};
  const Json variables = {{"messages", messages},
                          {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}},
                          {"add_generation_prompt", true},
                          {"bos_token", "<s>"}};
  const jinja::Program program(source);
  const std::string text = program.render(variables, options);
  fuzzing::require(text.size() <= size_t{1} << 18, "the output is bounded");
  fuzzing::require(program.render(variables, options) == text, "rendering changes no template");
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view source = input.substr(0, input.find('\0'));
  Json messages = default_messages();
  if (source.size() < input.size()) {
    Json given = Json::parse(input.substr(source.size() + 1), nullptr, false);
    if (!given.is_discarded()) messages = std::move(given);
  }
  fuzzing::run_or_refuse([&] { check(source, messages); });
  return 0;
}
