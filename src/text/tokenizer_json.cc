// Reading tokenizer.json: the vocabulary and the merges straight from the text, for they are nearly
// all of it; the small parts through a JSON tree.
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "io/file.h"
#include "io/gguf.h"
#include "text/bpe.h"
#include "text/json_fields.h"
#include "text/json_reader.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_impl.h"
#include "text/unigram.h"

namespace nanovllm {

namespace text {

namespace {

Vocabulary parse_vocabulary(JsonReader& reader, size_t document_size) {
  Vocabulary vocabulary;
  // Merges and layout take the greater part of a document; an entry is some 20 bytes.
  vocabulary.reserve(document_size / 64, document_size / 8);
  reader.begin('{');
  std::string token;
  for (bool first = true; reader.next_member(first, token);) {
    const uint32_t id = reader.unsigned_integer();
    if (id > kMaxTokenId) reader.fail(fmt::format("the token id {} is above {}", id, kMaxTokenId));
    vocabulary.add(token, static_cast<int32_t>(id));
  }
  vocabulary.finish();
  return vocabulary;
}

// The list of a unigram model: tokens and their scores, in the order of the ids.
Vocabulary parse_pieces(JsonReader& reader, size_t document_size, std::vector<double>& scores) {
  Vocabulary vocabulary;
  vocabulary.reserve(document_size / 64, document_size / 8);
  reader.begin('[');
  for (bool first = true; reader.next_element(first);) {
    if (scores.size() > kMaxTokenId) reader.fail("the vocabulary is too large");
    bool first_of_pair = true;
    reader.begin('[');
    if (!reader.next_element(first_of_pair)) reader.fail("a token was expected");
    vocabulary.add(reader.string(), static_cast<int32_t>(scores.size()));
    if (!reader.next_element(first_of_pair)) reader.fail("a token has no score");
    scores.push_back(reader.number());
    if (reader.next_element(first_of_pair)) reader.fail("more than a token and its score");
  }
  vocabulary.finish();
  // Of equal tokens the last one has the spelling.
  for (int32_t id = 0; vocabulary.size() < scores.size(); ++id) {
    if (!vocabulary.has_id(id)) reader.fail(fmt::format("the vocabulary has token {} twice", id));
  }
  return vocabulary;
}

class MergeReader {
 public:
  MergeReader(JsonReader& reader, const Vocabulary& vocabulary, size_t prefix_length)
      : reader_(reader), vocabulary_(vocabulary), prefix_length_(prefix_length) {}

  std::vector<PairTable::Rule> read() {
    std::vector<PairTable::Rule> rules;
    rules.reserve(vocabulary_.size());
    reader_.begin('[');
    for (bool first = true; reader_.next_element(first);) {
      const size_t middle = read_pair();
      if (middle == 0) continue;
      const std::string_view joined = joined_;
      PairTable::Rule rule;
      rule.left = id_of(joined.substr(0, middle));
      rule.right = id_of(joined.substr(middle));
      if (joined.size() - middle < prefix_length_) fail();
      joined_.erase(middle, prefix_length_);
      rule.joined = last_ = id_of(joined_, last_ + 1);
      rules.push_back(rule);
    }
    return rules;
  }

 private:
  // Puts both tokens into joined_ and returns where the second starts; 0: a line of comment.
  size_t read_pair() {
    if (reader_.peek() == '[') {
      size_t middle = 0, parts = 0;
      reader_.begin('[');
      joined_.clear();
      for (bool first = true; reader_.next_element(first); ++parts) {
        if (parts == 1) middle = joined_.size();
        joined_ += reader_.string();
      }
      if (parts != 2 || middle == 0) fail();
      return middle;
    }
    joined_ = reader_.string();
    if (joined_.starts_with("#version")) return 0;
    const size_t middle = joined_.find(' ');
    if (middle == 0 || middle == joined_.npos || joined_.find(' ', middle + 1) != joined_.npos) {
      fail();
    }
    joined_.erase(middle, 1);
    return middle;
  }

  int32_t id_of(std::string_view token, int32_t guess = -1) {
    const int32_t id = vocabulary_.find(token, guess);
    if (id < 0) {
      reader_.fail(fmt::format("a merge needs the token '{}', which the vocabulary lacks",
                               printable(token)));
    }
    return id;
  }

  [[noreturn]] void fail() {
    reader_.fail(fmt::format("the merge '{}' is not a pair of tokens", printable(joined_)));
  }

  JsonReader& reader_;
  const Vocabulary& vocabulary_;
  size_t prefix_length_;
  std::string joined_;
  int32_t last_ = -1;  // joined id of the last merge: mostly, ids stand in the order of merges
};

constexpr const char* kPrefix = "continuing_subword_prefix";

size_t prefix_length(const Fields& fields) {
  return fields.optional_string(kPrefix).value_or("").size();
}

BpeOptions parse_bpe_options(const Fields& fields) {
  if (const Json* dropout = fields.find("dropout"); dropout && *dropout != 0) {
    fields.unsupported(
        "has a 'dropout', which makes tokenization random (remove it or set it to 0)");
  }
  return {.unk_token = fields.optional_string("unk_token"),
          .continuing_subword_prefix = fields.optional_string(kPrefix).value_or(""),
          .end_of_word_suffix = fields.optional_string("end_of_word_suffix").value_or(""),
          .fuse_unk = fields.boolean_or("fuse_unk", false),
          .byte_fallback = fields.boolean_or("byte_fallback", false),
          .ignore_merges = fields.boolean_or("ignore_merges", false)};
}

std::unique_ptr<Model> parse_unigram(const Fields& fields, Vocabulary vocabulary,
                                     std::vector<double> scores) {
  const bool has_unknown = fields.find("unk_id") != nullptr;
  const uint32_t unknown = has_unknown ? fields.unsigned_integer("unk_id") : 0;
  if (has_unknown && unknown >= scores.size()) {
    fields.fail(fmt::format("has the unk_id {} for {} tokens", unknown, scores.size()));
  }
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores),
                                   has_unknown ? static_cast<int32_t>(unknown) : -1,
                                   fields.boolean_or("byte_fallback", false));
}

std::unique_ptr<Model> parse_model(JsonReader& reader, size_t document_size,
                                   const std::string& origin) {
  std::optional<Vocabulary> vocabulary;
  std::vector<double> scores;
  bool is_list = false;  // the vocabulary
  std::optional<std::vector<PairTable::Rule>> rules;
  std::optional<JsonReader> merges;  // where the list starts, when it comes before what it needs
  Json small = Json::object();
  reader.begin('{');
  std::string name;
  for (bool first = true; reader.next_member(first, name);) {
    if (name == "vocab") {
      is_list = reader.peek() == '[';
      vocabulary = is_list ? parse_pieces(reader, document_size, scores)
                           : parse_vocabulary(reader, document_size);
    } else if (name == "merges" && vocabulary && small.contains(kPrefix)) {
      const Fields fields(small, origin + ": model");
      rules = MergeReader(reader, *vocabulary, prefix_length(fields)).read();
    } else if (name == "merges") {
      merges = reader;
      reader.skip_value();
    } else {
      small[name] = parse_part(reader.skip_value(), "model." + name, origin);
    }
  }
  const Fields fields(small, origin + ": model");
  // Files from before the type was written and with merges are BPE.
  const bool is_old_bpe = !fields.find("type") && (rules || merges);
  const std::string type = is_old_bpe ? "BPE" : fields.type();
  if (type != "BPE" && type != "Unigram") fields.unsupported_type("BPE and Unigram");
  if (!vocabulary || is_list != (type == "Unigram")) fields.fail("has no 'vocab' of its type");
  if (is_list) return parse_unigram(fields, std::move(*vocabulary), std::move(scores));
  BpeOptions options = parse_bpe_options(fields);
  if (!rules) {
    if (!merges) fields.fail("has no 'merges'");
    rules = MergeReader(*merges, *vocabulary, prefix_length(fields)).read();
  }
  return std::make_unique<Bpe>(std::move(*vocabulary), *rules, std::move(options));
}

void parse_added_tokens(const Json& json, const std::string& origin, TokenizerParts& parts) {
  if (json.is_null()) return;
  if (!json.is_array()) {
    throw_error(ErrorCode::kCorruptData, "{}: added_tokens is not a list", origin);
  }
  for (size_t i = 0; i < json.size(); ++i) {
    const Fields fields(json[i], fmt::format("{}: added_tokens[{}]", origin, i));
    parts.added.add(parse_added_token(fields), parts.model->vocabulary());
  }
}

}  // namespace

TokenizerParts parse_tokenizer(std::string_view json, const std::string& origin) {
  if (json.size() > UINT32_MAX) {
    throw_error(ErrorCode::kUnsupported, "{}: larger than 4 GiB", origin);
  }
  TokenizerParts parts;
  JsonReader reader(json, origin);
  Json small = Json::object();
  reader.begin('{');
  std::string name;
  for (bool first = true; reader.next_member(first, name);) {
    if (name == "model") {
      parts.model = parse_model(reader, json.size(), origin);
    } else {
      small[name] = parse_part(reader.skip_value(), name, origin);
    }
  }
  reader.end();
  if (!parts.model) throw_error(ErrorCode::kCorruptData, "{}: has no 'model'", origin);
  parts.normalizer = Normalizer(small["normalizer"], origin);
  parts.pre_tokenizer = PreTokenizer(small["pre_tokenizer"], origin);
  parts.post_processor = PostProcessor(small["post_processor"], origin);
  parts.decoder = Decoder(small["decoder"], origin);
  parse_added_tokens(small["added_tokens"], origin, parts);
  return parts;
}

}  // namespace text

namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& origin) {
  auto impl = std::make_unique<Impl>(text::parse_tokenizer(json, origin));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& model) {
  if (const auto gguf = find_gguf(model)) {
    auto impl = std::make_unique<Impl>(text::parse_gguf_tokenizer(Gguf(*gguf)));
    return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  }
  const std::string path = model + "/tokenizer.json";
  if (!file_exists(path)) {
    throw_error(ErrorCode::kNotFound,
                "{}: not there; the folder of a Hugging Face model has it, and transformers' "
                "save_pretrained writes it from older files",
                path);
  }
  text::TokenizerParts parts = text::parse_tokenizer(text_of(MappedFile(path)), path);
  const std::string config = model + "/tokenizer_config.json";
  if (file_exists(config)) {
    text::apply_tokenizer_config(read_text_file(config), config, parts);
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(parts))));
}

}  // namespace nanovllm
