// Any bytes as a request line: refused, or a prompt and parameters that are text and in range.
#include <cmath>

#include "api/json.h"
#include "engine/structured_outputs.h"
#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  using fuzzing::require;
  fuzzing::run_or_refuse([&] {
    const RequestLine request = parse_request_line(std::string(fuzzing::as_text(data, size)), {});
    const SamplingParams& params = request.params;
    const auto is_utf8 = [](const std::string& text) {
      return text::find_invalid_utf8(text) == text.size();
    };
    if (const auto* prompt = std::get_if<std::string>(&request.prompt)) {
      require(is_utf8(*prompt), "a prompt is UTF-8");
    }
    for (const std::string& stop : params.stop) require(is_utf8(stop), "stop texts are UTF-8");
    for (const auto& [id, bias] : params.logit_bias) {
      require(std::isfinite(bias), "biases are finite");
    }
    params.validate();
    if (params.structured_outputs) check_structured_outputs(*params.structured_outputs);
  });
  return 0;
}
