// Any bytes as a tokenizer.json, and behind the first zero byte as a tokenizer_config.json. What
// loads must encode, decode and stream as every tokenizer does.
#include "check_ids.h"
#include "fuzzing.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_impl.h"

namespace nanovllm {
namespace {

using fuzzing::require;

void use(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size(), "ids are in range");
  require(tokenizer.encode(text) == ids, "a text has one encoding");
  for (const bool skip_special : {false, true}) fuzzing::check_ids(tokenizer, ids, skip_special);
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view json = input.substr(0, input.find('\0'));
  fuzzing::run_or_refuse([&] {
    const auto tokenizer = Tokenizer::from_json(json, "tokenizer.json");
    for (const std::string_view text : {"", " ", "hello  wor<|end|>é", "a\n\n'LL 12345 中文😀\u0301",
                                        "▁▁h\xE2\x96<s>\xFF\t[L] \u3000"}) {
      use(*tokenizer, text);
    }
  });
  if (json.size() == input.size()) return 0;
  fuzzing::run_or_refuse([&] {
    text::TokenizerParts parts = text::parse_tokenizer(json, "tokenizer.json");
    text::apply_tokenizer_config(input.substr(json.size() + 1), "tokenizer_config.json", parts);
    parts.added.finish(parts.normalizer);
  });
  return 0;
}
