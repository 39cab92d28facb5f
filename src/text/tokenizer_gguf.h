// The tokenizer of a GGUF file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/gguf_metadata.h"
#include "text/tokenizer_impl.h"

namespace nanovllm::text {

// Everything but added.finish(). Throws Error: kNotFound (the file has no tokenizer), kCorruptData,
// or kUnsupported naming the kind of tokenizer or the pre-tokenizer.
TokenizerParts parse_gguf_tokenizer(const GgufMetadata& gguf);

// bos_token, eos_token, unk_token and pad_token with their spellings, those that there are.
std::vector<std::pair<std::string, std::string>> gguf_special_tokens(const GgufMetadata& gguf);

}  // namespace nanovllm::text
