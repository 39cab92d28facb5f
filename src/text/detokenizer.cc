#include "text/detokenizer.h"

#include <utility>

#include "text/tokenizer_impl.h"

namespace nanovllm {

struct Detokenizer::State {
  const Tokenizer::Impl& tokenizer;
  bool skip_special_tokens;
  text::DecodeStream stream;
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(new State{*tokenizer.impl_, skip_special_tokens,
                       tokenizer.impl_->parts.decoder.start()}) {}
Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;

std::string Detokenizer::append(int32_t id) {
  std::string_view spelling;
  if (!state_->tokenizer.decodable(id, state_->skip_special_tokens, spelling)) return {};
  state_->stream.token(spelling);
  return std::exchange(state_->stream.out(), {});
}

std::string Detokenizer::finish() {
  state_->stream.finish();
  return std::exchange(state_->stream.out(), {});
}

}  // namespace nanovllm
