// What the tests of grammars in the engine share: a vocabulary of texts of one to three letters.
#pragma once

#include <memory>
#include <string>

#include "engine/engine_test_support.h"
#include "grammar/grammar.h"

namespace nanovllm {

inline constexpr int32_t kEndOfText = 0;
inline constexpr int kNumTokens = 50;  // of the model
// 0 is "<eos>", 1 to 8 are "a" to "h", 9 to 18 "0" to "9". The model has more tokens.
inline std::unique_ptr<const Tokenizer> short_texts() {
  std::string vocab = R"("<eos>":0)";
  for (int i = 0; i < 8; ++i)
    vocab += fmt::format(R"(,"{}":{})", static_cast<char>('a' + i), 1 + i);
  for (int i = 0; i < 10; ++i) vocab += fmt::format(R"(,"{}":{})", i, 9 + i);
  vocab += R"(,"{":19,"}":20,"\"":21,":":22,",":23,"ab":24,"abc":25,"12":26,"Ġ":27,"[":28,)"
           R"("]":29,"-":30,".":31,"\":":32,"Ã":33,"©":34,"bc":35)";
  return byte_level_tokenizer(vocab);
}

inline SamplingParams with_regex(SamplingParams params, const std::string& regex) {
  params.structured_outputs.emplace().regex = regex;
  params.ignore_eos = false;
  return params;
}

inline SamplingParams with_json(SamplingParams params, const std::string& schema) {
  params.structured_outputs.emplace().json = schema;
  params.ignore_eos = false;
  return params;
}

}  // namespace nanovllm
