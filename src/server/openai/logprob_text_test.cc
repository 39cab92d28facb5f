#include "server/openai/logprob_text.h"

#include <gtest/gtest.h>

#include "base/testing.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

constexpr const char* kReplacement = "\uFFFD";

// A byte-level tokenizer whose tokens of a character outside ASCII are bytes, or some of them.
std::unique_ptr<Tokenizer> demo() { return Tokenizer::load(test::source_path("models/demo")); }

PositionLogprobs position(const Tokenizer& tokenizer, int32_t id) {
  return {logprob(id, -1, 1, tokenizer.decode(std::span(&id, 1), false))};
}

TEST(LogprobText, TokensOfACharacterAddUpToIt) {
  const auto tokenizer = demo();
  const std::string text = "a\u00e9 \U0001f600\U0001f601 \u65e5\u672c b";
  const std::vector<int32_t> ids = tokenizer->encode(text, false);
  LogprobText chat(tokenizer.get(), false);
  LogprobText completion(tokenizer.get(), false);
  CompletionLogprobs lists;
  std::string content;
  int num_partial = 0;
  for (const int32_t id : ids) {
    const PositionLogprobs logprobs = position(*tokenizer, id);
    num_partial += logprobs[0].decoded_token->ends_with(kReplacement);
    if (!content.empty()) content += ',';
    chat.append_chat(logprobs, 1, content);
    completion.append_completion(id, &logprobs, 0, lists);
  }
  EXPECT_GT(num_partial, 3);
  std::string bytes, texts, tops;
  for (const Json& entry : Json::parse('[' + content + ']')) {
    for (const int byte : entry["bytes"]) bytes += static_cast<char>(byte);
    texts += entry["token"].get<std::string>();
    tops += entry["top_logprobs"][0]["token"].get<std::string>();
  }
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(texts, text);
  EXPECT_EQ(tops, text);
  const Json all = Json::parse(lists.json());
  std::string tokens;
  size_t offset = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(all["text_offset"][i], offset);
    tokens += all["tokens"][i].get<std::string>();
    for (const char c : all["tokens"][i].get<std::string>()) {
      offset += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }
  }
  EXPECT_EQ(tokens, text);
}

TEST(LogprobText, BytesThatAreNoCharacterHaveNoText) {
  const auto tokenizer = demo();
  const std::vector<int32_t> ids = tokenizer->encode("\U0001f600", false);
  ASSERT_GT(ids.size(), 1u);
  LogprobText text(tokenizer.get(), false);
  std::string content;
  for (int i = 0; i < 6; ++i) {
    if (i > 0) content += ',';
    text.append_chat(position(*tokenizer, ids[0]), 1, content);
  }
  for (const Json& entry : Json::parse('[' + content + ']')) {
    EXPECT_EQ(entry["token"], "");
    EXPECT_EQ(entry["bytes"].dump(), "[]");
  }
}

TEST(PackedLogprobs, KeepAllButTexts) {
  const auto tokenizer = demo();
  PackedLogprobs packed;
  packed.append_none();
  const std::vector<PositionLogprobs> positions = {
      {logprob(70, -3, 3, tokenizer->decode(std::vector{70}, false)),
       logprob(71, -1, 1, tokenizer->decode(std::vector{71}, false))},
      {logprob(72, -0.5, 1, tokenizer->decode(std::vector{72}, false))}};
  for (const PositionLogprobs& one : positions) packed.append(one);
  ASSERT_EQ(packed.size(), 3u);
  EXPECT_EQ(packed.at(0, tokenizer.get()), std::nullopt);
  EXPECT_EQ(packed.at(1, tokenizer.get()), positions[0]);
  EXPECT_EQ(packed.at(2, tokenizer.get()), positions[1]);
  EXPECT_EQ(packed.at(1, tokenizer.get(), 1)->size(), 1u);
  EXPECT_EQ(packed.at(2, nullptr)->front().decoded_token, std::nullopt);
  packed.clear();
  EXPECT_TRUE(packed.empty());
}

TEST(PackedLogprobs, KeepManyInOrder) {
  PackedLogprobs packed;
  for (int i = 0; i < 1000; ++i) {
    PositionLogprobs position;
    for (int j = 0; j <= i % 21; ++j) position.push_back({i * 100 + j, -0.5F * j, j + 1, {}});
    packed.append(position);
  }
  for (int i = 0; i < 1000; ++i) {
    const auto position = packed.at(i, nullptr);
    ASSERT_EQ(position->size(), i % 21 + 1u);
    for (int j = 0; j <= i % 21; ++j) {
      ASSERT_EQ((*position)[j], (TokenLogprob{i * 100 + j, -0.5F * j, j + 1, {}}));
    }
  }
}

TEST(LogprobText, AllOfTheTopWhereMinusOne) {
  LogprobText text(nullptr, false);
  const PositionLogprobs logprobs = {logprob(1, -3, 3, "a"), logprob(2, -1, 1, "b"),
                                     logprob(3, -2, 2, "b")};
  std::string content;
  text.append_chat(logprobs, -1, content);
  EXPECT_EQ(Json::parse(content)["top_logprobs"].size(), 3u);
  CompletionLogprobs lists;
  text.append_completion(1, &logprobs, -1, lists);
  EXPECT_EQ(lists.top_logprobs, R"({"a":-3.0,"b":-2.0})");
}

}  // namespace
}  // namespace nanovllm::server
