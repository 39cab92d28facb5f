#include "text/unicode.h"

#include <utf8proc.h>

#include <iterator>

#include "text/code_point_ranges.h"

namespace nanovllm::text {

namespace {

// clang-format off
constexpr int kCf = UTF8PROC_CATEGORY_CF;
constexpr int kLl = UTF8PROC_CATEGORY_LL;
constexpr int kLm = UTF8PROC_CATEGORY_LM;
constexpr int kLo = UTF8PROC_CATEGORY_LO;
constexpr int kLu = UTF8PROC_CATEGORY_LU;
constexpr int kMc = UTF8PROC_CATEGORY_MC;
constexpr int kMn = UTF8PROC_CATEGORY_MN;
constexpr int kNd = UTF8PROC_CATEGORY_ND;
constexpr int kNo = UTF8PROC_CATEGORY_NO;
constexpr int kPd = UTF8PROC_CATEGORY_PD;
constexpr int kPo = UTF8PROC_CATEGORY_PO;
constexpr int kSm = UTF8PROC_CATEGORY_SM;
constexpr int kSo = UTF8PROC_CATEGORY_SO;
constexpr CategoryRange kRecent[] = {
    {0x897, 0x897, kMn}, {0xCF3, 0xCF3, kMc}, {0xECE, 0xECE, kMn}, {0x1B4E, 0x1B4F, kPo},
    {0x1B7F, 0x1B7F, kPo}, {0x1C89, 0x1C89, kLu}, {0x1C8A, 0x1C8A, kLl}, {0x2427, 0x2429, kSo},
    {0x2FFC, 0x2FFF, kSo}, {0x31E4, 0x31E5, kSo}, {0x31EF, 0x31EF, kSo}, {0xA7CB, 0xA7CC, kLu},
    {0xA7CD, 0xA7CD, kLl}, {0xA7DA, 0xA7DA, kLu}, {0xA7DB, 0xA7DB, kLl}, {0xA7DC, 0xA7DC, kLu},
    {0x105C0, 0x105F3, kLo}, {0x10D40, 0x10D49, kNd}, {0x10D4A, 0x10D4D, kLo},
    {0x10D4E, 0x10D4E, kLm}, {0x10D4F, 0x10D4F, kLo}, {0x10D50, 0x10D65, kLu},
    {0x10D69, 0x10D6D, kMn}, {0x10D6E, 0x10D6E, kPd}, {0x10D6F, 0x10D6F, kLm},
    {0x10D70, 0x10D85, kLl}, {0x10D8E, 0x10D8F, kSm}, {0x10EC2, 0x10EC4, kLo},
    {0x10EFC, 0x10EFF, kMn}, {0x1123F, 0x11240, kLo}, {0x11241, 0x11241, kMn},
    {0x11380, 0x11389, kLo}, {0x1138B, 0x1138B, kLo}, {0x1138E, 0x1138E, kLo},
    {0x11390, 0x113B5, kLo}, {0x113B7, 0x113B7, kLo}, {0x113B8, 0x113BA, kMc},
    {0x113BB, 0x113C0, kMn}, {0x113C2, 0x113C2, kMc}, {0x113C5, 0x113C5, kMc},
    {0x113C7, 0x113CA, kMc}, {0x113CC, 0x113CD, kMc}, {0x113CE, 0x113CE, kMn},
    {0x113CF, 0x113CF, kMc}, {0x113D0, 0x113D0, kMn}, {0x113D1, 0x113D1, kLo},
    {0x113D2, 0x113D2, kMn}, {0x113D3, 0x113D3, kLo}, {0x113D4, 0x113D5, kPo},
    {0x113D7, 0x113D8, kPo}, {0x113E1, 0x113E2, kMn}, {0x116D0, 0x116E3, kNd},
    {0x11B00, 0x11B09, kPo}, {0x11BC0, 0x11BE0, kLo}, {0x11BE1, 0x11BE1, kPo},
    {0x11BF0, 0x11BF9, kNd}, {0x11F00, 0x11F01, kMn}, {0x11F02, 0x11F02, kLo},
    {0x11F03, 0x11F03, kMc}, {0x11F04, 0x11F10, kLo}, {0x11F12, 0x11F33, kLo},
    {0x11F34, 0x11F35, kMc}, {0x11F36, 0x11F3A, kMn}, {0x11F3E, 0x11F3F, kMc},
    {0x11F40, 0x11F40, kMn}, {0x11F41, 0x11F41, kMc}, {0x11F42, 0x11F42, kMn},
    {0x11F43, 0x11F4F, kPo}, {0x11F50, 0x11F59, kNd}, {0x11F5A, 0x11F5A, kMn},
    {0x1342F, 0x1342F, kLo}, {0x13439, 0x1343F, kCf}, {0x13440, 0x13440, kMn},
    {0x13441, 0x13446, kLo}, {0x13447, 0x13455, kMn}, {0x13460, 0x143FA, kLo},
    {0x16100, 0x1611D, kLo}, {0x1611E, 0x16129, kMn}, {0x1612A, 0x1612C, kMc},
    {0x1612D, 0x1612F, kMn}, {0x16130, 0x16139, kNd}, {0x16D40, 0x16D42, kLm},
    {0x16D43, 0x16D6A, kLo}, {0x16D6B, 0x16D6C, kLm}, {0x16D6D, 0x16D6F, kPo},
    {0x16D70, 0x16D79, kNd}, {0x18CFF, 0x18CFF, kLo}, {0x1B132, 0x1B132, kLo},
    {0x1B155, 0x1B155, kLo}, {0x1CC00, 0x1CCEF, kSo}, {0x1CCF0, 0x1CCF9, kNd},
    {0x1CD00, 0x1CEB3, kSo}, {0x1D2C0, 0x1D2D3, kNo}, {0x1DF25, 0x1DF2A, kLl},
    {0x1E030, 0x1E06D, kLm}, {0x1E08F, 0x1E08F, kMn}, {0x1E4D0, 0x1E4EA, kLo},
    {0x1E4EB, 0x1E4EB, kLm}, {0x1E4EC, 0x1E4EF, kMn}, {0x1E4F0, 0x1E4F9, kNd},
    {0x1E5D0, 0x1E5ED, kLo}, {0x1E5EE, 0x1E5EF, kMn}, {0x1E5F0, 0x1E5F0, kLo},
    {0x1E5F1, 0x1E5FA, kNd}, {0x1E5FF, 0x1E5FF, kPo}, {0x1F6DC, 0x1F6DC, kSo},
    {0x1F774, 0x1F776, kSo}, {0x1F77B, 0x1F77F, kSo}, {0x1F7D9, 0x1F7D9, kSo},
    {0x1F8B2, 0x1F8BB, kSo}, {0x1F8C0, 0x1F8C1, kSo}, {0x1FA75, 0x1FA77, kSo},
    {0x1FA87, 0x1FA89, kSo}, {0x1FA8F, 0x1FA8F, kSo}, {0x1FAAD, 0x1FAAF, kSo},
    {0x1FABB, 0x1FABF, kSo}, {0x1FAC6, 0x1FAC6, kSo}, {0x1FACE, 0x1FACF, kSo},
    {0x1FADA, 0x1FADC, kSo}, {0x1FADF, 0x1FADF, kSo}, {0x1FAE8, 0x1FAE9, kSo},
    {0x1FAF7, 0x1FAF8, kSo}, {0x1FBCB, 0x1FBEF, kSo}, {0x2B739, 0x2B739, kLo},
    {0x2EBF0, 0x2EE5D, kLo}, {0x31350, 0x323AF, kLo},
};
// clang-format on

constexpr bool between(int value, int low, int high) { return value >= low && value <= high; }

}  // namespace

std::span<const CategoryRange> recent_characters() { return kRecent; }

int category(uint32_t c) {
  const int known = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (known != UTF8PROC_CATEGORY_CN) return known;
  const auto range = find_range(kRecent, c);
  return range != std::end(kRecent) ? range->category : known;
}

bool is_mark(uint32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool is_number(uint32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_punctuation(uint32_t c) {
  return between(category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_word(uint32_t c) {
  const int value = category(c);
  return between(value, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NL) ||
         value == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||  // the joiners
         // Alphabetic symbols: circled and squared Latin letters.
         between(static_cast<int>(c), 0x24B6, 0x24E9) ||
         between(static_cast<int>(c), 0x1F130, 0x1F149) ||
         between(static_cast<int>(c), 0x1F150, 0x1F169) ||
         between(static_cast<int>(c), 0x1F170, 0x1F189);
}

CharClass class_of_non_ascii(uint32_t c) {
  if (is_space(c)) return CharClass::kSpace;
  const int value = category(c);
  if (between(value, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO)) return CharClass::kLetter;
  if (between(value, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO)) return CharClass::kNumber;
  return CharClass::kOther;
}

}  // namespace nanovllm::text
