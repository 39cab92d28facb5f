// What must hold for any ids and any tokenizer.
#pragma once

#include <string>
#include <vector>

#include "fuzzing.h"
#include "text/detokenizer.h"

namespace nanovllm::fuzzing {

inline void check_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                      bool skip_special) {
  const std::string whole = tokenizer.decode(ids, skip_special);
  require(text::find_invalid_utf8(whole) == whole.size(), "decoded text is UTF-8");
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.append(id);
    require(text::find_invalid_utf8(piece) == piece.size(), "no half a character is shown");
    joined += piece;
  }
  require(joined + detokenizer.finish() == whole, "a stream gives what decode gives");
}

inline void check_tokenizer(const Tokenizer& tokenizer) {
  for (const std::string_view text : {"", " ", "hello  wor<|end|>é", "a\n\n'LL 12345 中文😀\u0301",
                                      "▁▁h\xE2\x96<s>\xFF\t[L] \u3000"}) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer.vocab_size(), "ids are in range");
    }
    require(tokenizer.encode(text) == ids, "a text has one encoding");
    for (const bool skip_special : {false, true}) check_ids(tokenizer, ids, skip_special);
  }
}

}  // namespace nanovllm::fuzzing
