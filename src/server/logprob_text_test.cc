#include "server/logprob_text.h"

#include <gtest/gtest.h>

#include "server/protocol_testing.h"

namespace nanovllm::server {
namespace {

constexpr const char* kReplacement = "\uFFFD";

// A byte-level tokenizer whose tokens of a character outside ASCII are bytes, or some of them.
std::unique_ptr<Tokenizer> demo() {
  return Tokenizer::load(std::string(NANOVLLM_SOURCE_DIR) + "/models/demo");
}

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
    for (const char c : all["tokens"][i].get<std::string>())
      offset += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }
  EXPECT_EQ(tokens, text);
}

TEST(LogprobText, BytesThatAreNoCharacterHaveNoText) {
  const auto tokenizer = demo();
  const std::vector<int32_t> ids = tokenizer->encode("\U0001f600", false);
  ASSERT_GT(ids.size(), 1u);
  LogprobText text(tokenizer.get(), false);
  std::string content;
  for (int i = 0; i < 6; ++i) text.append_chat(position(*tokenizer, ids[0]), 1, content);
  for (const Json& entry : Json::parse('[' + content + ']')) {
    EXPECT_EQ(entry["token"], "");
    EXPECT_EQ(entry["bytes"].dump(), "[]");
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
