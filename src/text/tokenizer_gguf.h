// The tokenizer of a GGUF file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
#pragma once

#include "io/gguf_metadata.h"
#include "text/json_fields.h"
#include "text/tokenizer_impl.h"

namespace nanovllm::text {

// Everything but added.finish(). Throws Error: kNotFound (the file has no tokenizer), kCorruptData,
// or kUnsupported naming the kind of tokenizer or the pre-tokenizer.
TokenizerParts parse_gguf_tokenizer(const GgufMetadata& gguf);

// An object of bos_token, eos_token, unk_token and pad_token with their spellings, those that there
// are.
Json gguf_special_tokens(const GgufMetadata& gguf);

// The spelling of the token that the file wants before every text; empty = none. As llama.cpp has
// it, that goes for chats too: exporters take it out of templates.
std::string gguf_added_bos(const GgufMetadata& gguf);

}  // namespace nanovllm::text
