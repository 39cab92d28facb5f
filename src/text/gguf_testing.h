// Vocabularies of GGUF files for tests, made from tokenizer.json.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "io/gguf_testing.h"
#include "text/testing.h"

namespace nanovllm::text {

// What conversions write, ids without a token included, but for tokenizer.ggml.pre and the special
// tokens' ids. SentencePiece's scores are not in tokenizer.json: they are made to fall in the order
// of the merges.
template <typename Json>
testing::GgufWriter gguf_of(const Json& tokenizer) {
  const Json& model = tokenizer["model"];
  const bool is_sentence_piece = model.value("byte_fallback", Json(false)) == true;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto set = [&](const std::string& token, size_t id, int32_t type) {
    if (tokens.size() <= id) {
      tokens.resize(id + 1);
      types.resize(id + 1, 5);
    }
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : model["vocab"].items()) {
    set(token, id, is_sentence_piece && token.starts_with("<0x") && token.size() == 6 ? 6 : 1);
  }
  size_t next = model["vocab"].size();
  for (const auto& added : tokenizer["added_tokens"]) {
    const auto token = added["content"].template get<std::string>();
    const auto id = model["vocab"].find(token);
    const bool is_unknown = model["unk_token"] == added["content"];
    set(token, id == model["vocab"].end() ? next++ : id->template get<size_t>(),
        is_unknown                              ? 2
        : added["special"].template get<bool>() ? 3
                                                : 4);
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) tokens[id] = "[PAD" + std::to_string(id) + "]";
  }
  std::vector<std::string> merges;
  std::unordered_map<std::string, float> scores;
  for (const auto& merge : model["merges"]) {
    auto text = merge.is_string() ? merge.template get<std::string>()
                                  : merge[0].template get<std::string>() + " " +
                                        merge[1].template get<std::string>();
    merges.push_back(text);
    const auto rank = static_cast<float>(scores.size());
    scores.emplace(text.erase(text.find(' '), 1), -rank);
  }
  testing::GgufWriter file;
  file.add("tokenizer.ggml.model", std::string(is_sentence_piece ? "llama" : "gpt2"))
      .add("tokenizer.ggml.tokens", tokens)
      .add("tokenizer.ggml.token_type", types);
  if (!is_sentence_piece) return file.add("tokenizer.ggml.merges", merges);
  std::vector<float> all_scores;
  for (const std::string& token : tokens) {
    all_scores.push_back(scores.contains(token) ? scores[token] : 0.0f);
  }
  return file.add("tokenizer.ggml.scores", all_scores);
}

}  // namespace nanovllm::text
