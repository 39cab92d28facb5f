// What tokenizer_config.json adds to tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_impl.h"

namespace nanovllm::text {

// Tokens of added_tokens_decoder that tokenizer.json lacks, the id of eos_token, and add_bos_token
// and add_eos_token, which decide about those tokens where they are set, as they do for
// transformers. Call it before parts.added.finish(). Throws Error(kCorruptData); `origin` names the
// file.
void apply_tokenizer_config(std::string_view json, const std::string& origin,
                            TokenizerParts& parts);

}  // namespace nanovllm::text
