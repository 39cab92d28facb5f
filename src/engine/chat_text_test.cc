#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/engine_test_support.h"
#include "engine/parameter_error.h"
#include "io/gguf_testing.h"
#include "nanovllm/chat.h"
#include "nanovllm/prepare.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;

constexpr ChatTextOptions kContinues = {.add_generation_prompt = false,
                                        .continue_final_message = true};
constexpr const char* kTurns =
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

Json talk(const Json& last_content) {
  return {{{"role", "user"}, {"content", "hi"}},
          {{"role", "assistant"}, {"content", last_content}}};
}

std::string text_of(const char* source, const Json& messages, const ChatTextOptions& options) {
  return chat_text(ChatTemplate(source), messages, nullptr, nullptr, options).text;
}

// The parameter that is refused.
std::optional<std::string> refused(const char* source, const Json& messages,
                                   const ChatTextOptions& options) {
  try {
    text_of(source, messages, options);
  } catch (const ParameterError& error) {
    return error.parameter();
  }
  return std::nullopt;
}

TEST(ChatText, EndsAsItIsAskedTo) {
  EXPECT_EQ(text_of(kTurns, talk("yes"), {}), "u:hi;a:yes;a:");
  EXPECT_EQ(text_of(kTurns, talk("yes"), {.add_generation_prompt = false}), "u:hi;a:yes;");
  EXPECT_EQ(text_of(kTurns, talk("yes"), kContinues), "u:hi;a:yes");
  EXPECT_EQ(text_of(kTurns, talk("a: yes  "), kContinues), "u:hi;a:a: yes  ");
  const Json parts = Json::parse(R"([{"type":"text","text":"y"},{"type":"text","text":"es"}])");
  EXPECT_EQ(text_of(kTurns, talk(parts), kContinues), text_of(kTurns, talk("yes"), kContinues));
  EXPECT_EQ(text_of(kTurns, talk(nullptr), kContinues), "u:hi;a:");
}

// Templates that trim contents would trim what stands before a tag otherwise than without one.
TEST(ChatText, ContinuesWithoutTheSpacesThatTheTemplateTakes) {
  EXPECT_EQ(text_of("{% for m in messages %}{{ m.content | trim }}X{% endfor %}", talk("yes  "),
                    kContinues),
            "hiXyes");
}

TEST(ChatText, RefusesToContinueWhatItCanNot) {
  constexpr ChatTextOptions kBoth = {.continue_final_message = true};
  EXPECT_EQ(refused(kTurns, talk("yes"), kBoth), "continue_final_message");
  EXPECT_EQ(refused("X", talk("yes"), kContinues), "continue_final_message");
  EXPECT_EQ(refused(kTurns, talk("yes"), kContinues), std::nullopt);
  for (const Json& none : {Json::array(), Json(), Json(3)}) {
    EXPECT_THROW(text_of(kTurns, none, kContinues), Error) << none;
  }
}

// The tokenizer's come where they are asked for, and never beside those of the template.
TEST(ChatText, HasSpecialTokensOnce) {
  constexpr ChatTextOptions kSpecial = {.add_special_tokens = true};
  const ChatTemplate plain(kTurns);
  EXPECT_FALSE(chat_text(plain, talk("yes"), nullptr, nullptr).add_special_tokens);
  EXPECT_TRUE(chat_text(plain, talk("yes"), nullptr, nullptr, kSpecial).add_special_tokens);

  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("chat_text_" + std::to_string(::getpid()) + ".gguf");
  std::ofstream(path, std::ios::binary)
      << testing::GgufWriter()
             .add("tokenizer.ggml.model", std::string("llama"))
             .add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>"})
             .add("tokenizer.ggml.bos_token_id", uint32_t{1})
             .add("tokenizer.chat_template", std::string(kTurns))
             .bytes();
  const auto with_bos = ChatTemplate::load(path);
  std::filesystem::remove(path);
  for (const ChatTextOptions& options : {ChatTextOptions(), kSpecial}) {
    const ChatText chat = chat_text(*with_bos, talk("yes"), nullptr, nullptr, options);
    EXPECT_EQ(chat.text, "<s>u:hi;a:yes;a:");
    EXPECT_FALSE(chat.add_special_tokens);
  }
}

TEST(ChatText, IsWhatAPreparerTokenises) {
  const auto tokenizer = alphabet();
  const ChatTemplate chat_template("{% for m in messages %}{{ m.content }}d{% endfor %}");
  EngineInfo info;
  info.vocab_size = 50;
  info.max_model_len = 10;
  info.num_kvcache_blocks = 2;
  info.kvcache_block_size = 16;
  const RequestPreparer preparer{"fake", info, tokenizer.get(), &chat_template};
  const Json messages = {{{"role", "assistant"}, {"content", "bc"}}};
  const auto ids = [&](const ChatTextOptions& options) {
    return preparer.prepare_chat(3, messages, nullptr, nullptr, greedy(4), options)
        .prompt_token_ids;
  };
  EXPECT_EQ(ids({}), (Ids{1, 2, 3}));
  EXPECT_EQ(ids(kContinues), (Ids{1, 2}));
}

}  // namespace
}  // namespace nanovllm
