// The test vectors of transformers.js and llama.cpp.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "io/reference_data_testing.h"
#include "io/temp_dir_testing.h"
#include "nanovllm/tokenizer.h"
#include "text/gguf_testing.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

class TokenizerVectors : public testing::ReferenceDataTest {
 protected:
  TokenizerVectors() : ReferenceDataTest({"tokenizers", "tokenizer-vectors"}) {}

  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  fs::path tokenizer_folder(const std::string& name) const { return folder("tokenizers") / name; }
  std::unique_ptr<Tokenizer> load(const std::string& name) const {
    return Tokenizer::load(tokenizer_folder(name).string());
  }

  // What transformers adds to decoding where the configuration has clean_up_tokenization_spaces.
  static std::string cleaned_up(std::string text) {
    const std::pair<std::string, std::string> kReplacements[] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kReplacements) {
      for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
        text.replace(at, from.size(), to);
      }
    }
    return text;
  }

  // {"model id": [{"text", "ids", "decoded"}]}
  void check_transformers_js(const std::string& file, const std::string& model,
                             const std::string& tokenizer_name, bool clean_up = false) const {
    const auto tokenizer = load(tokenizer_name);
    const auto cases = nlohmann::json::parse(
        read(folder("tokenizer-vectors") / "transformers.js" / (file + ".json")));
    ASSERT_TRUE(cases.contains(model)) << model;
    ASSERT_FALSE(cases[model].empty());
    for (const auto& test : cases[model]) {
      const auto text = test["text"].get<std::string>();
      const auto ids = test["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer->encode(text), ids) << tokenizer_name << ": " << text;
      const std::string decoded = tokenizer->decode(ids, false);
      EXPECT_EQ(clean_up ? cleaned_up(decoded) : decoded, test["decoded"].get<std::string>())
          << tokenizer_name << ": " << text;
    }
  }

  // The texts of a file of either kind.
  std::vector<std::string> texts_of(const std::string& file) const {
    const std::string content = read(folder("tokenizer-vectors") / file);
    std::vector<std::string> texts;
    if (file.ends_with(".json")) {
      for (const auto& cases : nlohmann::json::parse(content)) {
        for (const auto& test : cases) texts.push_back(test["text"]);
      }
      return texts;
    }
    const std::string separator = "\n__ggml_vocab_test__\n";
    for (size_t begin = 0; begin < content.size(); begin += separator.size()) {
      const size_t end = std::min(content.find(separator, begin), content.size());
      texts.push_back(content.substr(begin, end - begin));
      begin = end;
    }
    return texts;
  }

  std::set<std::string> all_texts() const {
    std::set<std::string> all;
    for (const char* file :
         {"transformers.js/llama.json", "transformers.js/qwen2.json", "transformers.js/gpt2.json",
          "transformers.js/gemma.json", "llama.cpp/ggml-vocab-gpt-2.gguf.inp"}) {
      for (std::string& text : texts_of(file)) all.insert(std::move(text));
    }
    EXPECT_GE(all.size(), 80u);
    return all;
  }

  // A GGUF file with the same vocabulary gives what tokenizer.json gives. `pre`: its name for the
  // pre-tokenizer, empty for SentencePiece. `bos` is added, or comes to nothing.
  void check_gguf(const std::string& tokenizer_name, const std::string& pre,
                  const std::string& bos) const {
    const auto expected = load(tokenizer_name);
    const auto json =
        nlohmann::json::parse(read(tokenizer_folder(tokenizer_name) / "tokenizer.json"));
    testing::GgufWriter file = text::gguf_of(json);
    if (!pre.empty()) file.add("tokenizer.ggml.pre", pre);
    file.add("tokenizer.ggml.add_bos_token", !bos.empty());
    if (!bos.empty()) file.add("tokenizer.ggml.bos_token_id", expected->token_to_id(bos).value());
    const testing::TempDir temporary;
    const auto tokenizer = Tokenizer::load(temporary.write("vocabulary.gguf", file.bytes()));
    EXPECT_EQ(tokenizer->vocab_size(), expected->vocab_size());
    for (const std::string& text : all_texts()) {
      // Whether a special token takes blanks along is not in a GGUF file.
      if (text.find("<s>") != text.npos || text.find("</s>") != text.npos) continue;
      const std::vector<int32_t> ids = expected->encode(text);
      EXPECT_EQ(tokenizer->encode(text), ids) << tokenizer_name << ": " << text;
      EXPECT_EQ(tokenizer->decode(ids), expected->decode(ids)) << tokenizer_name << ": " << text;
    }
  }

  // Texts in .inp, a line of ids each in .out, without special tokens.
  void check_llama_cpp(const std::string& file, const std::string& tokenizer_name) const {
    const auto tokenizer = load(tokenizer_name);
    const fs::path base = folder("tokenizer-vectors") / "llama.cpp" / ("ggml-vocab-" + file);
    std::istringstream expected(read(base.string() + ".gguf.out"));
    int count = 0;
    for (const std::string& text : texts_of("llama.cpp/ggml-vocab-" + file + ".gguf.inp")) {
      std::string line;
      ASSERT_TRUE(std::getline(expected, line));
      std::istringstream numbers(line);
      std::vector<int32_t> ids;
      for (int32_t id; numbers >> id;) ids.push_back(id);
      EXPECT_EQ(tokenizer->encode(text, false), ids) << tokenizer_name << ": " << text;
      ++count;
    }
    EXPECT_GE(count, 40);
  }
};

// Those whose licences keep them in the archive.
class ArchivedTokenizerVectors : public TokenizerVectors {};

INSTANTIATE_TEST_SUITE_P(All, TokenizerVectors, testing::kExtents, testing::name_of_extent);
INSTANTIATE_TEST_SUITE_P(All, ArchivedTokenizerVectors, ::testing::Values(testing::Extent::kWhole),
                         testing::name_of_extent);

TEST_P(TokenizerVectors, Qwen) {
  for (const char* name : {"qwen2.5", "qwen3"}) {
    check_llama_cpp("qwen2", name);
    check_llama_cpp("deepseek-r1-qwen", name);
    check_transformers_js("qwen2", "Xenova/Qwen1.5-0.5B-Chat", name);
  }
}

TEST_P(TokenizerVectors, Gpt2) {
  check_llama_cpp("gpt-2", "gpt2");
  check_transformers_js("gpt2", "Xenova/gpt2", "gpt2", true);
  check_transformers_js("gpt2", "openai-community/gpt2", "gpt2", true);
}

TEST_P(TokenizerVectors, Phi3) { check_llama_cpp("phi-3", "phi-3-mini"); }

TEST_P(TokenizerVectors, GgufFilesOfByteLevelVocabularies) {
  check_gguf("gpt2", "gpt-2", "");
  check_gguf("qwen3", "qwen2", "");
}

TEST_P(TokenizerVectors, GgufFilesOfSentencePieceVocabularies) {
  check_gguf("mistral-v0.2", "", "<s>");
  check_gguf("phi-3-mini", "", "");
}

TEST_P(ArchivedTokenizerVectors, Llama3) {
  for (const char* name : {"llama-3", "llama-3.2"}) {
    check_llama_cpp("llama-bpe", name);
    check_transformers_js("llama", "Xenova/llama3-tokenizer-new", name, true);
  }
  check_gguf("llama-3.2", "llama-bpe", "<|begin_of_text|>");
}

TEST_P(ArchivedTokenizerVectors, Llama2) {
  check_llama_cpp("llama-spm", "llama-2");
  check_transformers_js("llama", "Xenova/llama-tokenizer", "llama-2");
  check_gguf("llama-2", "", "<s>");
}

TEST_P(ArchivedTokenizerVectors, DeepSeekCoder) {
  check_llama_cpp("deepseek-coder", "deepseek-coder-rebuilt");
  check_transformers_js("llama", "Xenova/deepseek-coder-1.3b-instruct", "deepseek-coder-rebuilt");
  check_gguf("deepseek-coder-rebuilt", "deepseek-coder", "<｜begin▁of▁sentence｜>");
}

// What tools/cut_test_data.py has left out, no text needs.
TEST_P(ArchivedTokenizerVectors, CommittedTokenizersGiveTheIdsOfTheWholeOnes) {
  size_t num_tokenizers = 0;
  for (const auto& entry : fs::directory_iterator(testing::committed_folder("tokenizers"))) {
    if (!entry.is_directory()) continue;
    ++num_tokenizers;
    const std::string name = entry.path().filename();
    const auto cut = Tokenizer::load(entry.path().string());
    const auto whole = load(name);
    for (const std::string& text : all_texts()) {
      for (const bool add_special_tokens : {false, true}) {
        const std::vector<int32_t> ids = whole->encode(text, add_special_tokens);
        EXPECT_EQ(cut->encode(text, add_special_tokens), ids) << name << ": " << text;
        EXPECT_EQ(cut->decode(ids), whole->decode(ids)) << name << ": " << text;
      }
    }
  }
  EXPECT_EQ(num_tokenizers, 5u);
}

}  // namespace
}  // namespace nanovllm
