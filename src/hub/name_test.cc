#include "hub/name.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanovllm/error.h"

namespace nanovllm::hub {
namespace {

TEST(HubName, HasOwnerModelRevisionAndType) {
  const auto plain = parse_name("Qwen/Qwen3-0.6B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repository, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->type, "");
  for (const char* text : {"a/b_c@refs/pr/1:Q4_K_M", "a/b_c:Q4_K_M@refs/pr/1"}) {
    const auto name = parse_name(text);
    ASSERT_TRUE(name) << text;
    EXPECT_EQ(name->repository, "a/b_c");
    EXPECT_EQ(name->revision, "refs/pr/1");
    EXPECT_EQ(name->type, "Q4_K_M");
  }
}

TEST(HubName, OtherTextsArePaths) {
  for (const char* text :
       {"", "model", "./model", "../a/b", "/a/b", "a/b/c", "a/", "/b", "~/b", "a/b c", "a/..",
        "../b", ".a/b", "a/b.", "-a/b", "a--b/c", "a/b..c", "a\\b/c", "a/b%2f"}) {
    EXPECT_FALSE(parse_name(text)) << text;
  }
  EXPECT_FALSE(parse_name("a/" + std::string(95, 'b')));
  EXPECT_TRUE(parse_name("a/" + std::string(94, 'b')));
}

TEST(HubName, RefusesRevisionsAndTypesThatCantBe) {
  for (const char* text : {"a/b@", "a/b:", "a/b@x@y", "a/b:x:y", "a/b@../x", "a/b@/x", "a/b@x/",
                           "a/b:..", "a/b@x\ny"}) {
    EXPECT_THROW(parse_name(text), Error) << text;
  }
  EXPECT_THROW(expect_name("../x"), Error);
}

TEST(HubName, AddressesOfAModelsPagesAreNames) {
  const std::pair<const char*, const char*> kCases[] = {
      {"https://huggingface.co/Own/Demo", "Own/Demo"},
      {"http://www.huggingface.co/Own/Demo/", "Own/Demo"},
      {"huggingface.co/Own/Demo", "Own/Demo"},
      {"hf.co/Own/Demo", "Own/Demo"},
      {"HTTPS://HuggingFace.co/Own/Demo", "Own/Demo"},
      {"hf.co/Own/Demo-GGUF:Q4_K_M", "Own/Demo-GGUF:Q4_K_M"},
      {"https://hf.co/Own/Demo@v1", "Own/Demo@v1"},
      {"https://huggingface.co/Own/Demo?library=transformers", "Own/Demo"},
      {"https://huggingface.co/Own/Demo#usage", "Own/Demo"},
      {"https://huggingface.co/Own/Demo/tree/main", "Own/Demo"},
      {"https://huggingface.co/Own/Demo/tree/v1/", "Own/Demo@v1"},
      {"https://huggingface.co/Own/Demo/tree/refs%2Fpr%2F1", "Own/Demo@refs/pr/1"},
      {"https://huggingface.co/Own/Demo/tree/100%25%", "Own/Demo@100%%"},
      {"https://huggingface.co/Own/Demo/tree/%4g%2", "Own/Demo@%4g%2"},
      {"https://huggingface.co/Own/Demo/commit/abc", "Own/Demo@abc"},
      {"https://huggingface.co/Own/Demo/commits/main", "Own/Demo"},
      {"https://huggingface.co/Own/Demo/blob/main/config.json", "Own/Demo"},
      {"https://huggingface.co/Own/A/blob/main/a-Q8_0.gguf", "Own/A:a-Q8_0.gguf"},
      {"https://huggingface.co/Own/A/resolve/v1/s/a.gguf?download=true", "Own/A@v1:s/a.gguf"},
      {"https://huggingface.co/Own/A/tree/main/UD-Q4_K_XL", "Own/A:UD-Q4_K_XL"},
      {"Own/Demo@v1:Q8_0", "Own/Demo@v1:Q8_0"},
      {"hf.co/Own", "hf.co/Own"},
      {"Once upon a time", "Once upon a time"},
  };
  for (const auto& [text, name] : kCases) EXPECT_EQ(name_of_address(text), name) << text;
  EXPECT_EQ(parse_name("https://hf.co/Own/Demo/tree/v1")->revision, "v1");
  for (const char* text :
       {"https://example.com/Own/Demo", "https://huggingface.co/", "https://huggingface.co/Own",
        "https://huggingface.co/datasets/Own/Demo", "https://huggingface.co/docs/transformers",
        "https://hf.co/Docs/hub/", "https://huggingface.co/datasets/squad/tree/main",
        "https://huggingface.co/spaces/Own?x", "https://hf.co/papers/2309.06180",
        "http://huggingface.co.example.com/Own/Demo", "https://"}) {
    EXPECT_THROW(parse_name(text), Error) << text;
  }
  EXPECT_THROW(parse_name("https://hf.co/Own/Demo/tree/..%2Fx"), Error);
  EXPECT_FALSE(parse_name("hf.co/docs/transformers"));
  EXPECT_EQ(parse_name("https://hf.co/docs-own/docs")->repository, "docs-own/docs");
}

TEST(HubName, WhoTakesAwayKeepsTheRevisionOfAnAddress) {
  const std::pair<const char*, const char*> kCases[] = {
      {"Own/Demo", "Own/Demo"},
      {"Own/Demo@main", "Own/Demo@main"},
      {"https://huggingface.co/Own/Demo/", "Own/Demo"},
      {"https://huggingface.co/Own/Demo/tree/main", "Own/Demo@main"},
      {"https://huggingface.co/Own/Demo/tree/v1", "Own/Demo@v1"},
      {"hf.co/Own/A/blob/main/a-Q8_0.gguf", "Own/A@main:a-Q8_0.gguf"},
      {"https://huggingface.co/Own/A/tree/main/UD-Q4_K_XL", "Own/A@main:UD-Q4_K_XL"},
  };
  for (const auto& [text, name] : kCases) EXPECT_EQ(exact_name_of_address(text), name) << text;
  for (const char* page : {"blob", "resolve", "raw", "commits"}) {
    const std::string address = fmt::format("hf.co/Own/Demo/{}/main/config.json", page);
    EXPECT_THROW(exact_name_of_address(address), Error) << page;
    EXPECT_EQ(name_of_address(address), "Own/Demo");
  }
}

TEST(HubName, SafePathsStayBelowTheirFolder) {
  for (const char* path : {"a", "a/b.json", "..a", "a..b/c", ".gitattributes", "\xc3\xa4"}) {
    EXPECT_TRUE(is_safe_path(path)) << path;
  }
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b",
                           "a/./b", "a\\b", "a\nb", "\x7f"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
  EXPECT_FALSE(is_safe_path(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
}

TEST(HubName, HashesAreHexadecimalInLowerCase) {
  EXPECT_TRUE(is_hash("0123456789abcdef", 16));
  EXPECT_FALSE(is_hash("0123456789abcdeF", 16));
  EXPECT_FALSE(is_hash("0123456789abcde", 16));
  EXPECT_FALSE(is_hash("../../../../../x", 16));
}

}  // namespace
}  // namespace nanovllm::hub
