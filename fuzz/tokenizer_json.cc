// Any bytes as a tokenizer.json, and behind the first zero byte as a tokenizer_config.json. What
// loads must encode, decode and stream as every tokenizer does.
#include "check_ids.h"
#include "fuzzing.h"
#include "text/tokenizer_impl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view json = input.substr(0, input.find('\0'));
  fuzzing::run_or_refuse(
      [&] { fuzzing::check_tokenizer(*Tokenizer::from_json(json, "tokenizer.json")); });
  if (json.size() == input.size()) return 0;
  fuzzing::run_or_refuse([&] {
    text::TokenizerParts parts = text::parse_tokenizer(json, "tokenizer.json");
    text::apply_tokenizer_config(input.substr(json.size() + 1), "tokenizer_config.json", parts);
    parts.added.finish(parts.normalizer);
  });
  return 0;
}
