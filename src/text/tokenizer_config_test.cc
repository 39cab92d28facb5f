// Folders whose tokenizer_config.json says other than their tokenizer.json, against what
// transformers made of them (tools/make_tokenizer_configs.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/testing.h"
#include "io/file.h"
#include "io/temp_dir_testing.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {
namespace {

TEST(TokenizerConfig, GivesTheTokensOfTransformers) {
  using TokenIds = std::vector<int32_t>;
  const auto recorded = nlohmann::ordered_json::parse(
      read_text_file(test::source_path("tests/data/tokenizer_configs.json")));
  const auto texts = recorded.at("texts").get<std::vector<std::string>>();
  const testing::TempDir folder;
  for (const auto& entry : recorded.at("cases")) {
    const auto& json = recorded.at("tokenizers").at(entry.at("tokenizer").get<std::string>());
    folder.write("tokenizer.json", json.dump());
    folder.write("tokenizer_config.json", entry.at("config").dump());
    const auto tokenizer = Tokenizer::load(folder.path());
    ASSERT_EQ(entry.at("results").size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto& result = entry.at("results")[i];
      const auto where = entry.at("name").get<std::string>() + ": " + texts[i];
      const auto ids = result.at("ids").get<TokenIds>();
      EXPECT_EQ(tokenizer->encode(texts[i]), ids) << where;
      EXPECT_EQ(tokenizer->encode(texts[i], false), result.at("plain").get<TokenIds>()) << where;
      EXPECT_EQ(tokenizer->decode(ids), result.at("decoded").get<std::string>()) << where;
    }
  }
  EXPECT_EQ(recorded.at("cases").size(), 38U);
}

}  // namespace
}  // namespace nanovllm
