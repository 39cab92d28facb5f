#include "text/tokenizer_gguf.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string_view>

#include "base/message.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

constexpr const char* kModel = "tokenizer.ggml.model";
constexpr const char* kPre = "tokenizer.ggml.pre";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kBos = "tokenizer.ggml.bos_token_id";
constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
constexpr const char* kUnknown = "tokenizer.ggml.unknown_token_id";

// tokenizer.ggml.token_type; all others are ordinary tokens.
enum TokenType { kUnknownToken = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Tokens that end the text, however their types and the ids of ends are set: files have both wrong.
constexpr std::string_view kEnds[] = {
    "<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<end_of_turn>", "<|end|>",       "<|return|>", "<|call|>",   "</s>"};

struct Tokens {
  std::vector<std::string_view> spellings;
  std::vector<int64_t> types;
  bool is_sentence_piece = false;
};

[[noreturn]] void corrupt(const GgufMetadata& gguf, const char* key, const std::string& what) {
  throw_error(ErrorCode::kCorruptData, "{}: {} {}", gguf.path(), key, what);
}

// An array with an entry for each token.
template <typename T>
std::vector<T> for_each_token(const GgufMetadata& gguf, const char* key,
                              std::optional<std::vector<T>> values, size_t tokens) {
  if (!values) corrupt(gguf, key, "is not there");
  if (values->size() != tokens) {
    corrupt(gguf, key, fmt::format("has {} entries for {} tokens", values->size(), tokens));
  }
  return std::move(*values);
}

Tokens read_tokens(const GgufMetadata& gguf) {
  const auto model = gguf.string(kModel);
  if (!model) throw_error(ErrorCode::kNotFound, "{}: has no {}", gguf.path(), kModel);
  if (*model != "gpt2" && *model != "llama") {
    throw_error(ErrorCode::kUnsupported,
                "{}: {} is '{}', which is not supported (gpt2 and llama are)", gguf.path(), kModel,
                printable(*model));
  }
  Tokens tokens;
  tokens.is_sentence_piece = *model == "llama";
  tokens.spellings = gguf.strings(kTokens).value_or(std::vector<std::string_view>());
  const size_t count = tokens.spellings.size();
  if (count == 0 || count > kMaxTokenId) {
    corrupt(gguf, kTokens, fmt::format("has {} tokens, expected 1 to {}", count, kMaxTokenId));
  }
  tokens.types.resize(count);
  if (auto types = gguf.integers(kTypes)) {
    tokens.types = for_each_token(gguf, kTypes, std::move(types), count);
  }
  return tokens;
}

// Without what fills the list up to the rows of the model's matrices.
Vocabulary make_vocabulary(const GgufMetadata& gguf, const Tokens& tokens, int32_t unknown) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  Vocabulary vocabulary;
  size_t bytes = 0, added = 0;
  for (const std::string_view token : tokens.spellings) bytes += token.size();
  if (bytes > kMaxBytes) {
    corrupt(gguf, kTokens, fmt::format("has {} bytes, expected at most {}", bytes, kMaxBytes));
  }
  vocabulary.reserve(tokens.spellings.size(), bytes);
  const auto is_filler = [&](int32_t id) {
    const int64_t type = tokens.types[id];
    return tokens.spellings[id].empty() || type == kUnused ||
           (type == kUnknownToken && id != unknown);
  };
  const auto count = static_cast<int32_t>(tokens.spellings.size());
  for (int32_t id = 0; id < count; ++id) {
    const std::string_view token = tokens.spellings[id];
    if (is_filler(id)) continue;
    if (find_invalid_utf8(token) != token.size()) {
      corrupt(gguf, kTokens, fmt::format("has a token {} that is not UTF-8", id));
    }
    if (tokens.types[id] == kByte && byte_of(token) < 0) {
      corrupt(gguf, kTokens,
              fmt::format("has the token {}, '{}', for a byte, expected <0x00> to <0xFF>", id,
                          printable(token)));
    }
    vocabulary.add(token, id);
    ++added;
  }
  vocabulary.finish();
  for (int32_t id = 0; id < count && vocabulary.size() < added; ++id) {
    const std::string_view token = tokens.spellings[id];
    if (const int32_t other = vocabulary.find(token); !is_filler(id) && other != id) {
      corrupt(gguf, kTokens,
              fmt::format("has '{}' twice, as tokens {} and {}", printable(token), id, other));
    }
  }
  return vocabulary;
}

std::vector<PairTable::Rule> read_merges(const GgufMetadata& gguf, const Vocabulary& vocabulary) {
  const auto merges = gguf.strings(kMerges);
  if (!merges) corrupt(gguf, kMerges, "is not there");
  std::vector<PairTable::Rule> rules;
  rules.reserve(merges->size());
  std::string joined;
  int32_t last = -1;  // joined id of the last merge: mostly, ids stand in the order of merges
  const auto id_of = [&](std::string_view token, int32_t guess = -1) {
    const int32_t id = vocabulary.find(token, guess);
    if (id >= 0) return id;
    corrupt(gguf, kMerges,
            fmt::format("needs the token '{}', which {} lacks", printable(token), kTokens));
  };
  for (const std::string_view merge : *merges) {
    const size_t middle = merge.find(' ');
    if (middle == 0 || middle >= merge.size() - 1 || merge.find(' ', middle + 1) != merge.npos) {
      corrupt(gguf, kMerges,
              fmt::format("has the merge {}, '{}', expected two tokens with a space between",
                          rules.size(), printable(merge)));
    }
    joined.assign(merge).erase(middle, 1);
    last = id_of(joined, last + 1);
    rules.push_back({id_of(merge.substr(0, middle)), id_of(merge.substr(middle + 1)), last});
  }
  return rules;
}

// Ranks of joined tokens: the best score first, equal for equal scores.
std::vector<uint32_t> read_ranks(const GgufMetadata& gguf, const Tokens& tokens,
                                 std::optional<int32_t> unknown) {
  const auto scores = for_each_token(gguf, kScores, gguf.floats(kScores), tokens.spellings.size());
  std::vector<uint32_t> ranks(scores.size(), kNoRank);
  for (size_t id = 0; id < scores.size(); ++id) {
    const int64_t type = tokens.types[id];
    const bool is_ordinary = type < kUnknownToken || type > kByte;
    if (!is_ordinary || static_cast<int32_t>(id) == unknown || byte_of(tokens.spellings[id]) >= 0) {
      continue;  // they stand for other text than their spelling, or are found before
    }
    // Floats order like their bits, negative ones the other way round; 0 is the best rank.
    const auto bits = std::bit_cast<uint32_t>(scores[id] + 0.0f);  // -0 is 0
    ranks[id] = bits >> 31 ? bits : ~(bits | 0x80000000u);
  }
  return ranks;
}

std::optional<int32_t> special_id(const GgufMetadata& gguf, const char* key, const Tokens& tokens) {
  const auto count = static_cast<int64_t>(tokens.spellings.size());
  // llama.cpp's LLAMA_TOKEN_NULL: there is none, and none is taken for granted.
  if (gguf.integer(key, INT64_MIN, INT64_MAX) == UINT32_MAX) return std::nullopt;
  if (const auto id = gguf.integer(key, 0, count - 1)) return static_cast<int32_t>(*id);
  // SentencePiece's own, which files may leave out.
  const std::string_view name = key;
  const int32_t own = name == kUnknown ? 0 : name == kBos ? 1 : name == kEos ? 2 : -1;
  if (!tokens.is_sentence_piece || own < 0 || own >= count) return std::nullopt;
  return own;
}

std::vector<int32_t> end_ids(const GgufMetadata& gguf, const Tokens& tokens,
                             const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  const auto add = [&](int32_t id) {
    if (id >= 0 && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  for (const char* key : {kEos, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    add(special_id(gguf, key, tokens).value_or(-1));
  }
  // Where messages have several parts, <|end|> ends a part only.
  const bool has_parts = vocabulary.find("<|return|>") >= 0 && vocabulary.find("<|call|>") >= 0;
  for (const std::string_view end : kEnds) {
    const bool ends_messages = end == "<|return|>" || end == "<|call|>";
    if (has_parts ? end != "<|end|>" : !ends_messages) add(vocabulary.find(end));
  }
  return ids;
}

// The tokens that stand at the ends of every text where the file wants them.
std::optional<int32_t> added_bos(const GgufMetadata& gguf, const Tokens& tokens) {
  const bool otherwise =
      tokens.is_sentence_piece || gguf_adds_bos(gguf.string(kPre).value_or("default"));
  const bool wanted = gguf.boolean("tokenizer.ggml.add_bos_token").value_or(otherwise);
  return wanted ? special_id(gguf, kBos, tokens) : std::nullopt;
}

std::optional<int32_t> added_eos(const GgufMetadata& gguf, const Tokens& tokens) {
  const bool wanted = gguf.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  return wanted ? special_id(gguf, kEos, tokens) : std::nullopt;
}

void add_tokens(const GgufMetadata& gguf, const Tokens& tokens, const Vocabulary& vocabulary,
                std::optional<int32_t> unknown, TokenizerParts& parts) {
  const auto bos = added_bos(gguf, tokens);
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
    if (!vocabulary.has_id(id)) continue;
    const int64_t type = tokens.types[id];
    // "</s>" is an ordinary token of some byte-level vocabularies; the other ends never are.
    const bool is_end = std::ranges::find(kEnds, tokens.spellings[id]) != std::end(kEnds) &&
                        std::ranges::find(parts.eos_token_ids, id) != parts.eos_token_ids.end() &&
                        tokens.spellings[id] != "</s>";
    // Chats have BOS as a text, which is to be read as the token.
    const bool special =
        type == kControl || (type == kUnknownToken && id == unknown) || is_end || id == bos;
    if (!special && type != kUserDefined) continue;
    parts.added.add_with_id({.content = std::string(tokens.spellings[id]), .special = special}, id);
  }
}

// Llama 2's pipeline.
void set_sentence_piece_pipeline(const GgufMetadata& gguf, TokenizerParts& parts) {
  const bool prefix = gguf.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "▁"}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}});
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1u}, {"stop", 0u}});
  }
  parts.normalizer =
      Normalizer({{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}, gguf.path());
  parts.decoder = Decoder({{"type", "Sequence"}, {"decoders", std::move(decoders)}}, gguf.path());
}

GgufPreTokenizer find_pre_tokenizer(const GgufMetadata& gguf) {
  std::string_view name = gguf.string(kPre).value_or("default");
  if (name == "default") {
    print_message(
        "nanovllm: {}: {} does not name a pre-tokenizer; gpt-2's is taken, and the model may do "
        "worse than it could\n",
        gguf.path(), kPre);
    name = "gpt-2";
  }
  return gguf_pre_tokenizer(name, gguf.path());
}

}  // namespace

TokenizerParts parse_gguf_tokenizer(const GgufMetadata& gguf) {
  const Tokens tokens = read_tokens(gguf);
  const auto unknown = special_id(gguf, kUnknown, tokens);
  Vocabulary vocabulary = make_vocabulary(gguf, tokens, unknown.value_or(-1));
  TokenizerParts parts;
  parts.eos_token_ids = end_ids(gguf, tokens, vocabulary);
  add_tokens(gguf, tokens, vocabulary, unknown, parts);
  if (tokens.is_sentence_piece) {
    BpeOptions options{.fuse_unk = true, .byte_fallback = true};
    if (vocabulary.has_id(unknown.value_or(-1))) options.unk_token = tokens.spellings[*unknown];
    set_sentence_piece_pipeline(gguf, parts);
    parts.model = std::make_unique<Bpe>(std::move(vocabulary), read_ranks(gguf, tokens, unknown),
                                        std::move(options));
  } else {
    GgufPreTokenizer pre = find_pre_tokenizer(gguf);
    const std::vector<PairTable::Rule> rules = read_merges(gguf, vocabulary);
    parts.normalizer = std::move(pre.normalizer);
    parts.pre_tokenizer = std::move(pre.pre_tokenizer);
    parts.decoder = Decoder({{"type", "ByteLevel"}}, gguf.path());
    parts.model = std::make_unique<Bpe>(std::move(vocabulary), rules,
                                        BpeOptions{.ignore_merges = pre.ignore_merges});
  }
  parts.post_processor.set_ends(added_bos(gguf, tokens).value_or(-1),
                                added_eos(gguf, tokens).value_or(-1));
  return parts;
}

Json gguf_special_tokens(const GgufMetadata& gguf) {
  Json result = Json::object();
  const Tokens tokens = read_tokens(gguf);
  for (const auto& [name, key] : {std::pair{"bos_token", kBos},
                                  {"eos_token", kEos},
                                  {"unk_token", kUnknown},
                                  {"pad_token", "tokenizer.ggml.padding_token_id"}}) {
    if (const auto id = special_id(gguf, key, tokens)) result[name] = tokens.spellings[*id];
  }
  return result;
}

std::string gguf_added_bos(const GgufMetadata& gguf) {
  const Tokens tokens = read_tokens(gguf);
  const auto id = added_bos(gguf, tokens);
  return id ? std::string(tokens.spellings[*id]) : std::string();
}

}  // namespace nanovllm::text
