#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/byte_alphabet.h"

namespace nanovllm::text {
namespace {

TEST(Utf8, ReplacesEachCutOffPrefixOnce) {
  const std::string r(kReplacement);
  // What Python's bytes.decode("utf-8", errors="replace") gives.
  EXPECT_EQ(replace_invalid_utf8("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(replace_invalid_utf8("\xC3"), r);
  EXPECT_EQ(replace_invalid_utf8("\xC3\xC3\xA9"), r + "é");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82z"), r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\xAF"), r + r + r);          // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "😀");
}

TEST(Utf8, WellFormedTextIsLeftAlone) {
  std::string text;
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 37) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const size_t start = text.size();
    append_utf8(text, c);
    EXPECT_EQ(decode_utf8(text.data() + start), c);
    EXPECT_EQ(utf8_length(text[start]), static_cast<int>(text.size() - start));
    EXPECT_EQ(previous_utf8(text, text.size()), start);
  }
  EXPECT_EQ(find_invalid_utf8(text), text.size());
  EXPECT_EQ(replace_invalid_utf8(text), text);
}

TEST(Utf8, ReplacementMakesAnyBytesWellFormed) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 ? random() | 0x80 : random());
    const std::string text = replace_invalid_utf8(bytes);
    EXPECT_EQ(find_invalid_utf8(text), text.size());
  }
}

TEST(ByteAlphabet, SpellsEveryByteOnceAndBack) {
  std::string bytes, spelling, back;
  for (int b = 0; b < 256; ++b) bytes.push_back(static_cast<char>(b));
  append_byte_spelling(spelling, bytes);
  append_spelled_bytes(back, spelling);
  EXPECT_EQ(back, bytes);
}

TEST(ByteAlphabet, TokenWithAForeignCharacterStandsForItself) {
  std::string out = "x";
  append_spelled_bytes(out, "Ġ中");
  EXPECT_EQ(out, "xĠ中");
}

}  // namespace
}  // namespace nanovllm::text
