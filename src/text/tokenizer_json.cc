// Reading tokenizer.json: the vocabulary and the merges straight from the text, for they are nearly
// all of it; the small parts through a JSON tree.
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "io/file.h"
#include "text/json_fields.h"
#include "text/json_reader.h"
#include "text/tokenizer_impl.h"

namespace nanovllm {

namespace text {

namespace {

Json parse_part(std::string_view json, const std::string& name, const std::string& origin) {
  try {
    return Json::parse(json);
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorCode::kCorruptData, "{}: '{}' is not valid JSON: {}", origin, name,
                error.what());
  }
}

Vocabulary parse_vocabulary(JsonReader& reader, size_t document_size) {
  Vocabulary vocabulary;
  // Merges and layout take the greater part of a document; an entry is some 20 bytes.
  vocabulary.reserve(document_size / 64, document_size / 8);
  reader.begin('{');
  std::string token;
  for (bool first = true; reader.next_member(first, token);) {
    const uint32_t id = reader.unsigned_integer();
    if (id > kMaxTokenId) reader.fail(fmt::format("the token id {} is too large", id));
    vocabulary.add(token, static_cast<int32_t>(id));
  }
  return vocabulary;
}

class MergeReader {
 public:
  MergeReader(JsonReader& reader, const Vocabulary& vocabulary, size_t prefix_length)
      : reader_(reader), vocabulary_(vocabulary), prefix_length_(prefix_length) {}

  MergeTable read() {
    MergeTable table(vocabulary_.size());
    reader_.begin('[');
    uint32_t rank = 0;
    for (bool first = true; reader_.next_element(first); ++rank) read_one(rank, table);
    return table;
  }

 private:
  void read_one(uint32_t rank, MergeTable& table) {
    size_t middle = 0;
    if (reader_.peek() == '[') {
      bool first = true;
      reader_.begin('[');
      if (!reader_.next_element(first)) fail();
      joined_ = reader_.string();
      middle = joined_.size();
      if (!reader_.next_element(first)) fail();
      joined_ += reader_.string();
      if (reader_.next_element(first)) fail();
    } else {
      joined_ = reader_.string();
      middle = joined_.find(' ');
      if (middle == joined_.npos || joined_.find(' ', middle + 1) != joined_.npos) {
        // serves files that start their merges as merges.txt does
        if (joined_.starts_with("#version")) return;
        fail();
      }
      joined_.erase(middle, 1);
    }
    const int32_t left = id_of(std::string_view(joined_).substr(0, middle));
    const int32_t right = id_of(std::string_view(joined_).substr(middle));
    if (joined_.size() - middle < prefix_length_) fail();
    joined_.erase(middle, prefix_length_);
    table.add(left, right, {rank, id_of(joined_)});
  }

  int32_t id_of(std::string_view token) {
    const int32_t id = vocabulary_.find(token);
    if (id < 0) {
      reader_.fail(fmt::format("a merge needs the token '{}', which the vocabulary lacks", token));
    }
    return id;
  }

  [[noreturn]] void fail() { reader_.fail("a merge is not a pair of tokens"); }

  JsonReader& reader_;
  const Vocabulary& vocabulary_;
  size_t prefix_length_;
  std::string joined_;
};

std::unique_ptr<Bpe> parse_model(JsonReader& reader, size_t document_size,
                                 const std::string& origin) {
  std::optional<Vocabulary> vocabulary;
  std::optional<std::string_view> merges;
  Json small = Json::object();
  reader.begin('{');
  std::string name;
  for (bool first = true; reader.next_member(first, name);) {
    if (name == "vocab" && reader.peek() == '{') {
      vocabulary = parse_vocabulary(reader, document_size);
    } else if (name == "merges") {
      merges = reader.skip_value();
    } else if (name == "vocab") {
      small[name] = Json::array();  // a list: the unigram model, which the type tells
      reader.skip_value();
    } else {
      small[name] = parse_part(reader.skip_value(), "model." + name, origin);
    }
  }
  const Fields fields(small, origin, "model");
  // Files from before the type was written are all BPE.
  const std::string type = fields.optional_string("type").value_or("BPE");
  if (type != "BPE") {
    fields.unsupported(fmt::format("is a '{}', which is not supported (BPE is)", type));
  }
  if (!vocabulary) fields.fail("has no 'vocab'");
  if (!merges) fields.fail("has no 'merges'");
  BpeOptions options;
  options.unk_token = fields.optional_string("unk_token");
  options.continuing_subword_prefix =
      fields.optional_string("continuing_subword_prefix").value_or("");
  options.end_of_word_suffix = fields.optional_string("end_of_word_suffix").value_or("");
  options.fuse_unk = fields.boolean_or("fuse_unk", false);
  options.byte_fallback = fields.boolean_or("byte_fallback", false);
  options.ignore_merges = fields.boolean_or("ignore_merges", false);
  if (const Json* dropout = fields.find("dropout"); dropout && *dropout != 0) {
    fields.unsupported(
        "has a 'dropout', which makes tokenization random (remove it or set it to 0)");
  }
  JsonReader merge_reader(*merges, origin);
  MergeTable table =
      MergeReader(merge_reader, *vocabulary, options.continuing_subword_prefix.size()).read();
  return std::make_unique<Bpe>(std::move(*vocabulary), std::move(table), std::move(options));
}

void parse_added_tokens(const Json& json, const std::string& origin, TokenizerParts& parts) {
  if (json.is_null()) return;
  if (!json.is_array())
    throw_error(ErrorCode::kCorruptData, "{}: added_tokens is not a list", origin);
  for (size_t i = 0; i < json.size(); ++i) {
    const Fields fields(json[i], origin, fmt::format("added_tokens[{}]", i));
    parts.added.add({.content = fields.string("content"),
                     .single_word = fields.boolean("single_word"),
                     .lstrip = fields.boolean("lstrip"),
                     .rstrip = fields.boolean("rstrip"),
                     .normalized = fields.boolean("normalized"),
                     .special = fields.boolean("special")},
                    parts.model->vocabulary());
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
  parts.added.finish(parts.normalizer);
  return parts;
}

}  // namespace text

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& origin) {
  auto impl = std::make_unique<Impl>();
  impl->parts = text::parse_tokenizer(json, origin);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  if (!file_exists(path)) {
    throw_error(ErrorCode::kNotFound, "{}: not there; a Hugging Face model folder has it", path);
  }
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace nanovllm
