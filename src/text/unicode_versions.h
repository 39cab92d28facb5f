// Properties for which Hugging Face's `tokenizers` stays with an older Unicode, or is ahead of the
// distribution's utf8proc: each of its libraries carries tables of its own.
#pragma once

#include <cstdint>
#include <string>

namespace nanovllm::text {

bool is_numeric(uint32_t c);            // of the Digits pre-tokenizer: \p{N} of Unicode 17
bool is_split_punctuation(uint32_t c);  // of the Punctuation pre-tokenizer: Unicode 8
bool is_accent(uint32_t c);             // of StripAccents: \p{M} of Unicode 9
void append_lower(std::string& out, uint32_t c);  // of Lowercase: Unicode 17
bool unknown_to_normalizers(uint32_t c);  // of NFC, NFKC, NFD and NFKD: newer than Unicode 9

}  // namespace nanovllm::text
