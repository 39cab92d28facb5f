#include "text/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "text/unicode_normalize.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {
namespace {

std::string normalized(const std::string& text, NormalForm form) {
  std::string out;
  return normalize_unicode(text, form, out) ? out : text;
}

bool is_letter(uint32_t c) {
  return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO;
}

std::string by_utf8proc(const std::string& text, NormalForm form) {
  utf8proc_uint8_t* result = nullptr;
  const int options =
      UTF8PROC_STABLE | UTF8PROC_COMPOSE | (form == NormalForm::kNfkc ? UTF8PROC_COMPAT : 0);
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &result,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  return size < 0 ? "error"
                  : std::string(reinterpret_cast<char*>(result), static_cast<size_t>(size));
}

TEST(NormalizeUnicode, AgreesWithUtf8procOnEveryKnownCharacterAndItsDecomposition) {
  for (uint32_t c = 1; c <= 0x10FFFF; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || unknown_to_normalizers(c)) continue;
    std::string text = "x";
    append_utf8(text, c);
    for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfkc}) {
      ASSERT_EQ(normalized(text, form), by_utf8proc(text, form)) << std::hex << c;
    }
  }
}

TEST(NormalizeUnicode, AgreesWithUtf8procOnRandomText) {
  constexpr uint32_t kStarts[] = {'a',    0xC0,   0x300,  0x323,  0x340,  0x5B0,  0x653,   0x915,
                                  0x93C,  0x9C7,  0x9BE,  0xDD9,  0x1100, 0x1161, 0x11A8,  0xAC00,
                                  0x1E00, 0x212B, 0xF900, 0xFB1D, 0xFF76, 0x3099, 0x1D15E, 0x2F800};
  std::mt19937 random(17);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) {
      const uint32_t c = kStarts[random() % std::size(kStarts)] + random() % 24;
      if (!unknown_to_normalizers(c)) append_utf8(text, c);
    }
    for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfkc}) {
      const std::string once = normalized(text, form);
      ASSERT_EQ(once, by_utf8proc(text, form)) << ::testing::PrintToString(text);
      ASSERT_EQ(normalized(once, form), once);
    }
  }
}

TEST(NormalizeUnicode, NewerCharactersStayAsTheyAre) {
  EXPECT_EQ(normalized("\u32FF", NormalForm::kNfkc), "\u32FF");          // Unicode 12.1
  EXPECT_EQ(normalized("\U0001FBF3", NormalForm::kNfkc), "\U0001FBF3");  // Unicode 13
  EXPECT_EQ(normalized("\U00011935\U00011930", NormalForm::kNfc), "\U00011935\U00011930");
}

TEST(NormalizeUnicode, AMegabyteOfMarksTakesLinearTime) {
  std::string text = "e";
  while (text.size() < 1 << 20) text += "\u0301\u0323";
  const std::string out = normalized(text, NormalForm::kNfc);
  EXPECT_TRUE(out.starts_with("\u1EB9\u0323\u0323"));
  EXPECT_TRUE(out.ends_with("\u0301\u0301"));
}

TEST(Unicode, RecentCharactersHaveTheirCategories) {
  EXPECT_EQ(category(0x1FAE8), UTF8PROC_CATEGORY_SO);  // shaking face, 15
  EXPECT_TRUE(is_letter(0x31350));                     // CJK extension H, 15
  EXPECT_TRUE(is_letter(0x2EBF0));                     // CJK extension I, 15.1
  EXPECT_TRUE(is_letter(0x10D50));                     // Garay, 16
  EXPECT_TRUE(is_number(0x11BF0));                     // Sunuwar digit, 16
  EXPECT_EQ(category(0x323B0), UTF8PROC_CATEGORY_CN);
  uint32_t last = 0;
  for (const CategoryRange& range : recent_characters()) {
    EXPECT_GT(range.first, last);
    EXPECT_GE(range.last, range.first);
    last = range.last;
  }
}

TEST(Unicode, ClassesAgreeWithCategories) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    const CharClass expected = c == '\r' || c == '\n' ? CharClass::kNewline
                               : is_space(c)          ? CharClass::kSpace
                               : is_letter(c)         ? CharClass::kLetter
                               : is_number(c)         ? CharClass::kNumber
                                                      : CharClass::kOther;
    const CharClass actual = c < 0x80 ? kAsciiClasses[c] : class_of_non_ascii(c);
    ASSERT_EQ(actual, expected) << std::hex << c;
  }
}

TEST(Unicode, WordsAreWhatRustTakesForThem) {
  for (const uint32_t c : {0x61, 0xE9, 0x4E2D, 0x5F, 0x37, 0x301, 0x200D, 0x24B6, 0x2160}) {
    EXPECT_TRUE(is_word(c)) << std::hex << c;
  }
  for (const uint32_t c : {0x20, 0x2D, 0xBD, 0x1F600, 0x2460}) {
    EXPECT_FALSE(is_word(c)) << std::hex << c;
  }
}

}  // namespace
}  // namespace nanovllm::text
