#include "text/charsmap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>

namespace nanovllm::text {
namespace {

std::string base64_of(const std::string& bytes) {
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
std::string table_of(const std::map<std::string, std::string>& replacements) {
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
    for (int i = 0; i < 200; ++i)
      bad[4 + random() % (bad.size() - 4)] = static_cast<char>(random());
    const auto map = Charsmap::from_base64(base64_of(bad));
    if (map) apply(*map, "a½ﬁb㍿ cafe\u0301s\r\n한");
  }
}

}  // namespace
}  // namespace nanovllm::text
