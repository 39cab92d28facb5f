#include "nanovllm/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

namespace nanovllm {

using text::AddedToken;
using text::AddedTokens;
using text::EncodeScratch;

namespace {

// Texts up to this many bytes leave buffers of a few megabytes at most.
constexpr size_t kKeepScratch = 256 * 1024;
// Bytes of text cut into words at once: all about them stays in the cache.
constexpr size_t kBlock = 16 * 1024;

// Where messages have channels, a call ends the turn as an answer does; older files name the end of
// an answer alone.
void add_ends_of_messages(text::TokenizerParts& parts) {
  const int32_t ends[] = {parts.added.find("<|return|>"), parts.added.find("<|call|>")};
  if (std::ranges::find(ends, -1) != std::end(ends)) return;
  std::vector<int32_t>& ids = parts.eos_token_ids;
  for (const int32_t id : ends) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
}

}  // namespace

Tokenizer::Impl::Impl(text::TokenizerParts all) : parts(std::move(all)) {
  parts.added.finish(parts.normalizer);
  add_ends_of_messages(parts);
  const auto of_model = parts.model->max_bytes_per_token(parts.pre_tokenizer.byte_level());
  const auto of_added = parts.added.max_bytes();
  const auto shrinkage = parts.normalizer.max_shrinkage();
  if (of_model && of_added && shrinkage && !parts.pre_tokenizer.drops_text()) {
    max_bytes_per_token = *shrinkage * std::max(*of_model, *of_added);
  }
}

std::unique_ptr<EncodeScratch> Tokenizer::Impl::take_scratch() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void Tokenizer::Impl::give_back(std::unique_ptr<EncodeScratch> scratch, size_t bytes) {
  if (bytes > kKeepScratch) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

void Tokenizer::Impl::encode_word(std::string_view word, EncodeScratch& scratch,
                                  std::vector<int32_t>& out) const {
  scratch.model.score = 0;
  scratch.model.scored = out.size();
  if (parts.pre_tokenizer.byte_level()) return encode_part(word, scratch, out);
  for (size_t at = 0; at < word.size() && out.size() <= scratch.most;) {
    const size_t end = parts.model->part_end(word, at);
    encode_part(word.substr(at, end - at), scratch, out);
    at = end;
  }
}

void Tokenizer::Impl::encode_part(std::string_view word, EncodeScratch& scratch,
                                  std::vector<int32_t>& out) const {
  if (scratch.cache.append(word, out)) return;
  const size_t start = out.size();
  if (parts.model->encode(word, parts.pre_tokenizer.byte_level(), scratch.model, out)) {
    scratch.cache.store(word, std::span(out).subspan(start));
  }
}

void Tokenizer::Impl::encode_words(std::string_view text, bool at_origin, EncodeScratch& scratch,
                                   std::vector<int32_t>& out) const {
  if (const auto pattern = parts.pre_tokenizer.only_pattern()) {
    for (size_t at = 0; at < text.size() && out.size() <= scratch.most;) {
      const size_t end = text::scan(*pattern, text, at);
      encode_word(text.substr(at, end - at), scratch, out);
      at = end;
    }
    return;
  }
  if (parts.pre_tokenizer.empty()) {
    encode_word(text, scratch, out);
    return;
  }
  const text::Words& words = scratch.pre_tokenize.words;
  const size_t block = parts.pre_tokenizer.cuts_at_spaces() ? kBlock : text.size();
  for (size_t begin = 0, end = 0; begin < text.size() && out.size() <= scratch.most; begin = end) {
    end = std::min(text.find(' ', begin + block), text.size());
    parts.pre_tokenizer.apply(text.substr(begin, end - begin), at_origin && begin == 0,
                              scratch.pre_tokenize);
    for (const text::Span span : words.spans) {
      if (out.size() > scratch.most) return;
      encode_word(std::string_view(words.text).substr(span.begin, span.end - span.begin), scratch,
                  out);
    }
  }
}

// Text without verbatim added tokens.
void Tokenizer::Impl::encode_text(std::string_view text, bool at_origin, EncodeScratch& scratch,
                                  std::vector<int32_t>& out) const {
  text = parts.normalizer.apply(text, scratch.normalize, at_origin);
  if (text.empty()) return;
  if (parts.added.empty(true)) {
    encode_words(text, at_origin, scratch, out);
    return;
  }
  parts.added.split(text, true, scratch.normalized);
  for (const AddedTokens::Piece piece : scratch.normalized) {
    if (out.size() > scratch.most) return;
    if (piece.id >= 0) {
      out.push_back(piece.id);
    } else {
      encode_words(text.substr(piece.begin, piece.end - piece.begin), at_origin && piece.begin == 0,
                   scratch, out);
    }
  }
}

bool Tokenizer::Impl::decodable(int32_t id, bool skip_special_tokens,
                                std::string_view& spelling) const {
  if (const AddedToken* token = parts.added.get(id)) {
    spelling = token->content;
    return !(skip_special_tokens && token->special);
  }
  if (!parts.model->vocabulary().has_id(id)) return false;
  spelling = parts.model->vocabulary().spelling(id);
  return true;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       size_t most) const {
  std::string repaired;
  if (text::find_invalid_utf8(text) != text.size()) {
    repaired = text::replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  auto scratch = impl_->take_scratch();
  scratch->most = most;
  if (impl_->parts.added.empty(false)) {
    if (!text.empty()) impl_->encode_text(text, true, *scratch, ids);
  } else {
    impl_->parts.added.split(text, false, scratch->verbatim);
    for (const AddedTokens::Piece piece : scratch->verbatim) {
      if (ids.size() > most) break;
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        impl_->encode_text(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0,
                           *scratch, ids);
      }
    }
  }
  impl_->give_back(std::move(scratch), text.size());
  impl_->parts.post_processor.apply(ids, add_special_tokens);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  text::DecodeStream stream = impl_->parts.decoder.start();
  stream.out().reserve(ids.size() * 4);
  std::string_view spelling;
  for (const int32_t id : ids) {
    if (impl_->decodable(id, skip_special_tokens, spelling)) stream.token(spelling);
  }
  stream.finish();
  return std::move(stream.out());
}

std::optional<size_t> Tokenizer::max_bytes_per_token() const { return impl_->max_bytes_per_token; }

int Tokenizer::vocab_size() const {
  return std::max(impl_->parts.model->vocabulary().id_end(), impl_->parts.added.id_end());
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  int32_t id = impl_->parts.added.find(token);
  if (id < 0) id = impl_->parts.model->vocabulary().find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  std::string_view spelling;
  if (!impl_->decodable(id, false, spelling)) return std::nullopt;
  return std::string(spelling);
}

bool Tokenizer::is_added(int32_t id) const { return impl_->parts.added.get(id) != nullptr; }

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = impl_->parts.added.get(id);
  return token != nullptr && token->special;
}

const std::vector<int32_t>& Tokenizer::eos_token_ids() const { return impl_->parts.eos_token_ids; }

}  // namespace nanovllm
