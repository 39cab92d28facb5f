// Small tokenizers and random text for the tests of this layer.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace nanovllm::text {

using TestJson = nlohmann::ordered_json;

inline TestJson model_json(const std::vector<std::string>& tokens,
                           const std::vector<std::pair<std::string, std::string>>& merges) {
  TestJson model = {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"vocab", TestJson::object()},
                    {"merges", TestJson::array()}};
  const auto add = [&](const std::string& token) {
    if (!model["vocab"].contains(token)) model["vocab"][token] = model["vocab"].size();
  };
  for (const std::string& token : tokens) add(token);
  for (const auto& [left, right] : merges) {
    add(left + right);
    model["merges"].push_back({left, right});
  }
  return model;
}

inline TestJson tokenizer_json(TestJson model) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", TestJson::array()},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", std::move(model)}};
}

inline TestJson added_token_json(const std::string& content, bool special) {
  return {{"id", 0},         {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// GPT-2's pipeline over the bytes and a few merges; <|end|> is special.
inline TestJson byte_level_json() {
  std::vector<std::string> bytes(256);
  for (int b = 0; b < 256; ++b) append_utf8(bytes[b], kByteToChar[b]);
  const std::string space = bytes[' '];
  TestJson json = tokenizer_json(model_json(bytes, {{"h", "e"},
                                                    {"l", "l"},
                                                    {"he", "ll"},
                                                    {"hell", "o"},
                                                    {space, "w"},
                                                    {"o", "r"},
                                                    {space + "w", "or"},
                                                    {space, space},
                                                    {space + space, space + space},
                                                    {"a", "a"},
                                                    {"aa", "aa"},
                                                    {bytes[0xF0], bytes[0x9F]},
                                                    {bytes[0xC3], bytes[0xA9]}}));
  const TestJson byte_level = {{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", true}};
  json["pre_tokenizer"] = json["decoder"] = byte_level;
  json["added_tokens"].push_back(added_token_json("<|end|>", true));
  return json;
}

// Llama 2's pipeline; 0 to 2 are <unk>, <s> and </s>, 3 to 258 the bytes.
inline TestJson sentence_piece_json() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int b = 0; b < 256; ++b) tokens.push_back(fmt::format("<0x{:02X}>", b));
  for (const char* c : {"▁", "h", "e", "l", "o", "w", "r", "d", "a", "é", "中"}) {
    tokens.push_back(c);
  }
  TestJson json = tokenizer_json(model_json(tokens, {{"▁", "h"},
                                                     {"l", "l"},
                                                     {"▁h", "e"},
                                                     {"ll", "o"},
                                                     {"▁he", "llo"},
                                                     {"▁", "▁"},
                                                     {"▁", "w"},
                                                     {"o", "r"},
                                                     {"▁w", "or"},
                                                     {"a", "a"}}));
  json["model"]["unk_token"] = "<unk>";
  json["model"]["fuse_unk"] = true;
  json["model"]["byte_fallback"] = true;
  json["normalizer"] = TestJson::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  json["decoder"] = TestJson::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  json["post_processor"] = TestJson::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})");
  for (const char* token : {"<unk>", "<s>", "</s>"}) {
    json["added_tokens"].push_back(added_token_json(token, true));
  }
  return json;
}

// The same vocabulary in the pipeline of a SentencePiece file that transformers converted; longer
// tokens have better scores.
inline TestJson unigram_json() {
  TestJson json = sentence_piece_json();
  TestJson pieces = TestJson::array();
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    pieces.push_back(
        {token, id.get<int>() < 259 ? -9.5 : -8.0 / static_cast<double>(token.size())});
  }
  json["model"] = {
      {"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", true}, {"vocab", std::move(pieces)}};
  json["normalizer"] = TestJson::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "NFKD"}, {"type": "StripAccents"},
      {"type": "Strip", "strip_left": false, "strip_right": true},
      {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]})");
  json["pre_tokenizer"] = json["decoder"] = TestJson::parse(
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})");
  return json;
}

inline std::string base64_of(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) {
      group = group << 8 | (j < bytes.size() ? static_cast<uint8_t>(bytes[j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? digits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

// A table as SentencePiece writes it: the size of a double-array trie, the trie, and replacements
// with zeros behind them. The children of each node have 256 units to themselves.
inline std::string table_of(const std::map<std::string, std::string>& replacements) {
  std::map<std::string, uint32_t> nodes = {{"", 0}};  // prefix -> unit
  std::vector<uint32_t> units(1);
  std::string texts;
  const auto block_of = [&](uint32_t node) {
    if (units[node] >> 10 == 0) {
      units[node] |= (static_cast<uint32_t>((units.size() + 255) / 256 * 256) ^ node) << 10;
      units.resize((units[node] >> 10 ^ node) + 256);
    }
    return units[node] >> 10 ^ node;
  };
  for (const auto& [key, text] : replacements) {
    uint32_t node = 0;
    for (size_t i = 1; i <= key.size(); ++i) {
      const auto label = static_cast<uint8_t>(key[i - 1]);
      const uint32_t child = block_of(node) ^ label;
      units[child] |= label;
      node = child;
    }
    const uint32_t value = block_of(node);
    units[node] |= 1 << 8;
    units[value] = static_cast<uint32_t>(texts.size()) | 1u << 31;
    texts.append(text).push_back('\0');
  }
  const auto size = static_cast<uint32_t>(units.size() * 4);
  std::string bytes(4 + size, '\0');
  std::memcpy(bytes.data(), &size, 4);
  std::memcpy(bytes.data() + 4, units.data(), size);
  return bytes + texts;
}

inline std::unique_ptr<Tokenizer> make_tokenizer(const TestJson& json) {
  return Tokenizer::from_json(json.dump(), "test.json");
}

// Well-formed text of up to `pieces` pieces that the split patterns care about.
inline std::string random_text(std::mt19937& random, int pieces) {
  static constexpr std::string_view kPieces[] = {" ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "'s",
                                                 "'S",
                                                 "'ll",
                                                 "'\xC5\xBF",
                                                 "'",
                                                 "a",
                                                 "Z",
                                                 "hello",
                                                 "7",
                                                 "123",
                                                 "½",
                                                 "٣",
                                                 "é",
                                                 "e\xCC\x81",
                                                 "中",
                                                 "文",
                                                 "😀",
                                                 "!",
                                                 "==",
                                                 "<|end|>",
                                                 "▁",
                                                 "_",
                                                 "\x01",
                                                 "\xE2\x80\xA8",
                                                 "ǅ",
                                                 "\xD6\xB7",
                                                 "\xE1\xA0\x8E",
                                                 "\xF0\x9F\xAB\xA8",
                                                 "\xC2\x85"};
  std::string text;
  const int count = std::uniform_int_distribution<int>(0, pieces)(random);
  for (int i = 0; i < count; ++i) {
    const auto which = std::uniform_int_distribution<size_t>(0, std::size(kPieces) + 2)(random);
    if (which < std::size(kPieces)) {
      text += kPieces[which];
      continue;
    }
    uint32_t c = std::uniform_int_distribution<uint32_t>(0, which % 2 ? 0x10FFFF : 0x2FFF)(random);
    if (c >= 0xD800 && c <= 0xDFFF) c = 'x';
    append_utf8(text, c);
  }
  return text;
}

}  // namespace nanovllm::text
