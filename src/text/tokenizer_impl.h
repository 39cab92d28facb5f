// What a Tokenizer is made of.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/word_cache.h"

namespace nanovllm {

namespace text {

// The parts, named as tokenizer.json names them.
struct TokenizerParts {
  std::unique_ptr<Model> model;
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<int32_t> eos_token_ids;
};

// Everything but added.finish(), for more tokens may follow. Throws Error: kCorruptData, or
// kUnsupported naming the part; `origin` names the file in both.
TokenizerParts parse_tokenizer(std::string_view json, const std::string& origin);

// Adds what tokenizer_config.json has: tokens of added_tokens_decoder that tokenizer.json lacks,
// the id of eos_token, and for the classes that do so a template of bos_token and eos_token. Call
// it before added.finish(). Throws Error(kCorruptData); `origin` names the file.
void apply_tokenizer_config(std::string_view json, const std::string& origin,
                            TokenizerParts& parts);

// Everything encode() needs besides the tokenizer; reused from call to call.
struct EncodeScratch {
  WordCache cache;
  ModelScratch model;
  NormalizeScratch normalize;
  PreTokenizeScratch pre_tokenize;
  std::vector<AddedTokens::Piece> verbatim, normalized;
  size_t most = SIZE_MAX;  // ids that are wanted: what comes behind them may be left out
};

}  // namespace text

struct Tokenizer::Impl {
  explicit Impl(text::TokenizerParts all);  // calls all.added.finish()
  text::TokenizerParts parts;
  std::optional<size_t> max_bytes_per_token;

  // Spelling an id has for the decoder; false: there is no such id, or it is to be skipped.
  bool decodable(int32_t id, bool skip_special_tokens, std::string_view& spelling) const;
  void encode_text(std::string_view text, bool at_origin, text::EncodeScratch& scratch,
                   std::vector<int32_t>& out) const;
  void encode_words(std::string_view text, bool at_origin, text::EncodeScratch& scratch,
                    std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, text::EncodeScratch& scratch,
                   std::vector<int32_t>& out) const;
  // Of a word that is not to be cut further.
  void encode_part(std::string_view word, text::EncodeScratch& scratch,
                   std::vector<int32_t>& out) const;

  std::unique_ptr<text::EncodeScratch> take_scratch();
  // `bytes`: of the text it served; buffers that grew for a long one are not kept.
  void give_back(std::unique_ptr<text::EncodeScratch> scratch, size_t bytes);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<text::EncodeScratch>> idle_;  // as many as ever encoded at once
};

}  // namespace nanovllm
