#include "text/detokenizer.h"

#include <utility>

#include "text/byte_alphabet.h"
#include "text/decode_steps.h"
#include "text/tokenizer_impl.h"

namespace nanovllm {

namespace {

// How many of a prompt's last tokens are looked at (vLLM's least): up to three can be bytes of a
// character that is cut off, and one before them tells decoders that the text has begun. A run of
// bytes is looked at as a whole, as it is text or not as a whole.
constexpr int kNumContextTokens = 4;

}  // namespace

struct Detokenizer::State {
  const Tokenizer::Impl& tokenizer;
  bool skip_special_tokens;
  text::DecodeStream stream;
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> prompt)
    : state_(new State{*tokenizer.impl_, skip_special_tokens,
                       tokenizer.impl_->parts.decoder.start()}) {
  size_t begin = prompt.size();
  std::string_view spelling;
  bool in_run = false;  // of bytes
  for (int found = 0; begin > 0 && (found < kNumContextTokens || in_run);) {
    if (!state_->tokenizer.decodable(prompt[--begin], skip_special_tokens, spelling)) continue;
    ++found;
    in_run = text::byte_of(spelling) >= 0;
  }
  for (const int32_t id : prompt.subspan(begin)) append(id);
  state_->stream.end_prompt();
  state_->stream.out().clear();
}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;

std::vector<std::string> Detokenizer::bytes_of_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string> texts(tokenizer.vocab_size());
  const Tokenizer::Impl& impl = *tokenizer.impl_;
  text::DecodeStream stream = impl.parts.decoder.start();
  stream.token("x");  // what the first token of a text loses belongs to the others
  std::string_view spelling;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!impl.decodable(id, false, spelling)) continue;
    if (impl.parts.decoder.spells_bytes()) {
      text::append_spelled_bytes(texts[id], spelling);
    } else if (const int byte = text::byte_of(spelling);
               byte >= 0 && impl.parts.decoder.falls_back_to_bytes()) {
      texts[id] = static_cast<char>(byte);
    } else {
      stream.out().clear();
      stream.token(spelling);
      texts[id] = stream.out();
    }
  }
  return texts;
}

std::string Detokenizer::append(int32_t id, bool keep) {
  std::string_view spelling;
  const bool skip_special_tokens = state_->skip_special_tokens && !keep;
  if (!state_->tokenizer.decodable(id, skip_special_tokens, spelling)) return {};
  state_->stream.token(spelling);
  return std::exchange(state_->stream.out(), {});
}

std::string Detokenizer::finish() {
  state_->stream.finish();
  return std::exchange(state_->stream.out(), {});
}

}  // namespace nanovllm
