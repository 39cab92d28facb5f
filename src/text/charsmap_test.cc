#include "text/charsmap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>

#include "text/testing.h"

namespace nanovllm::text {
namespace {

std::string apply(const Charsmap& map, std::string_view text) {
  std::string out;
  map.apply(text, out);
  return out;
}

const std::map<std::string, std::string> kReplacements = {
    {"½", "1/2"}, {"e\u0301", "é"},   {"ﬁ", "fi"},  {"\r", " "},
    {"\x01", ""}, {"㍿", "株式会社"}, {"한", "HAN"}};

TEST(Charsmap, ReplacesCharactersAndShortGraphemes) {
  const auto map = Charsmap::from_base64(base64_of(table_of(kReplacements)));
  ASSERT_TRUE(map);
  EXPECT_EQ(apply(*map, ""), "");
  EXPECT_EQ(apply(*map, "plain, ünïcode 中文"), "plain, ünïcode 中文");
  EXPECT_EQ(apply(*map, "a½ﬁb㍿"), "a1/2fib株式会社");
  EXPECT_EQ(apply(*map, "cafe\u0301s e"), "cafés e");
  EXPECT_EQ(apply(*map,
                  "a\x01"
                  "b\x01"),
            "ab");
  // The shortest prefix stands for the whole grapheme, as long as that is short.
  EXPECT_EQ(apply(*map, "a\r\nb"), "a b");
  EXPECT_EQ(apply(*map, "½\u0301x"), "1/2x");
  EXPECT_EQ(apply(*map, "½\u0301\u0301x"), "1/2\u0301\u0301x");
  EXPECT_EQ(apply(*map, "ﬁ\u0301\u0301"), "fi\u0301\u0301");
}

TEST(Charsmap, DamagedTablesAreRefusedOrHarmless) {
  const std::string good = table_of(kReplacements);
  EXPECT_FALSE(Charsmap::from_base64(""));
  EXPECT_FALSE(Charsmap::from_base64("AAAA*"));
  EXPECT_FALSE(Charsmap::from_base64(base64_of(good.substr(0, 3))));
  EXPECT_FALSE(Charsmap::from_base64(base64_of(good.substr(0, 100))));
  EXPECT_FALSE(Charsmap::from_base64(base64_of(std::string(8, '\0'))));
  EXPECT_FALSE(Charsmap::from_base64(base64_of(good + "\xFF")));
  std::mt19937 random(33);
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    for (int i = 0; i < 200; ++i) {
      bad[4 + random() % (bad.size() - 4)] = static_cast<char>(random());
    }
    const auto map = Charsmap::from_base64(base64_of(bad));
    if (map) apply(*map, "a½ﬁb㍿ cafe\u0301s\r\n한");
  }
}

}  // namespace
}  // namespace nanovllm::text
