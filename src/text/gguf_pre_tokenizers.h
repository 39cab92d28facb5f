// The pre-tokenizers that GGUF files name instead of describing them.
#pragma once

#include <string>
#include <string_view>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace nanovllm::text {

// What tokenizer.ggml.pre stands for.
struct GgufPreTokenizer {
  PreTokenizer pre_tokenizer;
  Normalizer normalizer;
  bool ignore_merges;
};

// Throws Error(kUnsupported) for a name that is not known; `origin` names the file.
GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& origin);

// Whether texts begin with BOS where the file does not say.
bool gguf_adds_bos(std::string_view name);

}  // namespace nanovllm::text
