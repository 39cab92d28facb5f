#include "hub/name.h"

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
