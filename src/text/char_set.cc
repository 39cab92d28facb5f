#include "text/char_set.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>

#include "text/unicode.h"

namespace nanovllm::text {

namespace {

struct Category {
  std::string_view short_name;  // as PCRE2 has it
  std::string_view long_name;   // without underscores, lower case
  int first, last;              // utf8proc's numbers
};

constexpr Category kCategories[] = {
    {"L", "letter", UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO},
    {"Lu", "uppercaseletter", UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LU},
    {"Ll", "lowercaseletter", UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LL},
    {"Lt", "titlecaseletter", UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LT},
    {"Lm", "modifierletter", UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LM},
    {"Lo", "otherletter", UTF8PROC_CATEGORY_LO, UTF8PROC_CATEGORY_LO},
    {"M", "mark", UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME},
    {"Mn", "nonspacingmark", UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN},
    {"Mc", "spacingmark", UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_MC},
    {"Me", "enclosingmark", UTF8PROC_CATEGORY_ME, UTF8PROC_CATEGORY_ME},
    {"N", "number", UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO},
    {"Nd", "decimalnumber", UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND},
    {"Nl", "letternumber", UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NL},
    {"No", "othernumber", UTF8PROC_CATEGORY_NO, UTF8PROC_CATEGORY_NO},
    {"P", "punctuation", UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO},
    {"Pc", "connectorpunctuation", UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PC},
    {"Pd", "dashpunctuation", UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PD},
    {"Ps", "openpunctuation", UTF8PROC_CATEGORY_PS, UTF8PROC_CATEGORY_PS},
    {"Pe", "closepunctuation", UTF8PROC_CATEGORY_PE, UTF8PROC_CATEGORY_PE},
    {"Pi", "initialpunctuation", UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PI},
    {"Pf", "finalpunctuation", UTF8PROC_CATEGORY_PF, UTF8PROC_CATEGORY_PF},
    {"Po", "otherpunctuation", UTF8PROC_CATEGORY_PO, UTF8PROC_CATEGORY_PO},
    {"S", "symbol", UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SO},
    {"Sm", "mathsymbol", UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SM},
    {"Sc", "currencysymbol", UTF8PROC_CATEGORY_SC, UTF8PROC_CATEGORY_SC},
    {"Sk", "modifiersymbol", UTF8PROC_CATEGORY_SK, UTF8PROC_CATEGORY_SK},
    {"So", "othersymbol", UTF8PROC_CATEGORY_SO, UTF8PROC_CATEGORY_SO},
    {"Z", "separator", UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP},
    {"Zs", "spaceseparator", UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZS},
    {"Zl", "lineseparator", UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZL},
    {"Zp", "paragraphseparator", UTF8PROC_CATEGORY_ZP, UTF8PROC_CATEGORY_ZP},
    {"Cc", "control", UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CC},
    {"Cf", "format", UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CF},
    {"Co", "privateuse", UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CO},
};

// What newer versions of Unicode added to the scripts that patterns name.
struct ScriptRange {
  std::string_view script;
  uint32_t first, last;
};
constexpr ScriptRange kRecentScripts[] = {
    {"han", 0x2B739, 0x2B739},        {"han", 0x2EBF0, 0x2EE5D},      {"han", 0x31350, 0x323AF},
    {"hiragana", 0x1B132, 0x1B132},   {"katakana", 0x1B155, 0x1B155}, {"cyrillic", 0x1C89, 0x1C8A},
    {"cyrillic", 0x1E030, 0x1E06D},   {"cyrillic", 0x1E08F, 0x1E08F}, {"latin", 0xA7CB, 0xA7CD},
    {"latin", 0xA7DA, 0xA7DC},        {"arabic", 0x10EC2, 0x10EC4},   {"arabic", 0x10EFC, 0x10EFF},
    {"devanagari", 0x11B00, 0x11B09},
};

CharSet category_set(const Category& category) {
  CharSet set;
  set.items = fmt::format("\\p{{{}}}", category.short_name);
  uint32_t first = 1, last = 0;  // of a run of neighbours
  for (const CategoryRange& range : recent_characters()) {
    if (range.category < category.first || range.category > category.last) continue;
    if (range.first == last + 1) {
      last = range.last;
      continue;
    }
    if (first <= last) set.add(first, last);
    first = range.first;
    last = range.last;
  }
  if (first <= last) set.add(first, last);
  return set;
}

const Category* find_category(std::string_view name) {
  for (const Category& category : kCategories) {
    const bool is_short =
        std::equal(name.begin(), name.end(), category.short_name.begin(), category.short_name.end(),
                   [](char a, char b) { return a == std::tolower(b); });
    if (is_short || name == category.long_name) return &category;
  }
  return nullptr;
}

CharSet category_named(std::string_view short_name) {
  std::string lower;
  for (const char c : short_name) lower += static_cast<char>(std::tolower(c));
  return category_set(*find_category(lower));
}

CharSet range_set(uint32_t first, uint32_t last) {
  CharSet set;
  set.add(first, last);
  return set;
}

CharSet union_of(std::initializer_list<CharSet> sets) {
  CharSet all;
  for (const CharSet& set : sets) all.add(set);
  return all;
}

}  // namespace

void CharSet::add(uint32_t first, uint32_t last) {
  items += fmt::format("\\x{{{:X}}}", first);
  if (last != first) items += fmt::format("-\\x{{{:X}}}", last);
}

void CharSet::add(const CharSet& set) {
  items += set.items;
  others.insert(others.end(), set.others.begin(), set.others.end());
}

std::string CharSet::regex() const {
  if (items.empty() && others.empty()) return "(?!)";
  if (others.empty()) return "[" + items + "]";
  if (items.empty() && others.size() == 1) return others[0];
  std::string regex = "(?:";
  if (!items.empty()) regex += "[" + items + "]|";
  for (const std::string& other : others) regex += other + "|";
  regex.back() = ')';
  return regex;
}

CharSet CharSet::negated() const {
  CharSet set;
  if (others.empty() && !items.empty()) {
    set.others.push_back("[^" + items + "]");
  } else {
    set.others.push_back("(?:(?!" + regex() + ")(?s:.))");
  }
  return set;
}

CharSet CharSet::intersected(const CharSet& set) const {
  CharSet both;
  both.others.push_back("(?:(?=" + regex() + ")" + set.regex() + ")");
  return both;
}

CharSet space_set() {
  // PCRE2's own \s has U+180E as well.
  CharSet set;
  for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{9, 13},
                                    {0x20, 0x20},
                                    {0x85, 0x85},
                                    {0xA0, 0xA0},
                                    {0x1680, 0x1680},
                                    {0x2000, 0x200A},
                                    {0x2028, 0x2029},
                                    {0x202F, 0x202F},
                                    {0x205F, 0x205F},
                                    {0x3000, 0x3000}}) {
    set.add(first, last);
  }
  return set;
}

CharSet digit_set() { return category_named("Nd"); }

CharSet word_set(bool in_class) {
  CharSet set = union_of({category_named("L"), category_named("M"), category_named("Nd"),
                          category_named("Nl"), category_named("Pc")});
  // Circled and squared letters.
  for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{0x24B6, 0x24E9},
                                    {0x1F130, 0x1F149},
                                    {0x1F150, 0x1F169},
                                    {0x1F170, 0x1F189}}) {
    set.add(first, last);
  }
  if (!in_class) {
    for (const uint32_t c : {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}) set.add(c, c);  // ²³¹¼½¾
  }
  return set;
}

CharSet hex_set() {
  return union_of({range_set('0', '9'), range_set('A', 'F'), range_set('a', 'f')});
}

std::optional<CharSet> posix_set(std::string_view name) {
  if (name == "space") return space_set();
  if (name == "digit") return digit_set();
  if (name == "word") return word_set(true);
  if (name == "xdigit") return hex_set();
  if (name == "punct") return union_of({category_named("P"), category_named("S")});
  if (name == "alpha" || name == "upper" || name == "lower" || name == "alnum") {
    return property_set(name, true);
  }
  if (name == "cntrl") return category_named("Cc");
  if (name == "ascii") return range_set(0, 0x7F);
  return std::nullopt;
}

std::optional<CharSet> property_set(std::string_view name, bool in_class) {
  std::string folded;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    if (!std::isalnum(static_cast<unsigned char>(c))) return std::nullopt;
    folded += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (folded.empty()) return std::nullopt;
  if (const Category* category = find_category(folded)) return category_set(*category);
  if (folded == "space" || folded == "whitespace") return space_set();
  if (folded == "digit") return digit_set();
  if (folded == "word") return word_set(in_class);
  if (folded == "xdigit") return hex_set();
  if (folded == "punct") return category_named("P");
  if (folded == "alnum") return union_of({*property_set("alpha", in_class), digit_set()});
  if (folded == "any") return range_set(0, 0x10FFFF);
  CharSet set;
  if (folded == "alpha" || folded == "alphabetic") {
    set.items = "\\p{Alphabetic}";
  } else if (folded == "upper" || folded == "uppercase") {
    set.items = "\\p{Uppercase}";
  } else if (folded == "lower" || folded == "lowercase") {
    set.items = "\\p{Lowercase}";
  } else if (folded.starts_with("emoji") || folded == "extendedpictographic") {
    set.items = fmt::format("\\p{{{}}}", folded);
  } else {
    // PCRE2's bare script names mean Script_Extensions.
    set.items = fmt::format("\\p{{sc:{}}}", folded);
    for (const ScriptRange& range : kRecentScripts) {
      if (range.script == folded) set.add(range.first, range.last);
    }
  }
  return set;
}

}  // namespace nanovllm::text
