#include "grammar/regex.h"

#include <utf8proc.h>

#include <array>
#include <optional>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

constexpr int kMaxGroupDepth = 100;  // of groups
constexpr size_t kManyTexts = 16;
constexpr uint32_t kMaxRepeatCount = 1000000;  // of a repeat

// What a part matches, by whether it has to stand at the text's begin (first) and end (second).
struct Matches {
  std::array<std::array<NodeId, 2>, 2> nodes = {};  // never()

  bool is_anchored() const { return nodes[0][1] != 0 || nodes[1][0] != 0 || nodes[1][1] != 0; }
};

CharRanges digits() { return {{'0', '9'}}; }
CharRanges word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }

// What Python takes for these beside ASCII's.
struct UnicodeClasses {
  CharRanges digits, word_characters;
};

const UnicodeClasses& unicode_classes() {
  static const UnicodeClasses kClasses = [] {
    constexpr uint32_t kLastWithWords = 0x3FFFF;
    UnicodeClasses classes = {digits(), word_characters()};
    for (uint32_t c = 0x80; c <= kLastWithWords; ++c) {
      const int category = text::category(c);
      if (category == UTF8PROC_CATEGORY_ND) classes.digits.add(c, c);
      const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
      if (is_letter || text::is_number(c)) classes.word_characters.add(c, c);
    }
    return classes;
  }();
  return kClasses;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, Syntax& syntax, const RegexOptions& options)
      : text_(pattern), syntax_(syntax), options_(options) {
    const size_t invalid = text::find_invalid_utf8(pattern);
    if (invalid != pattern.size()) fail(invalid, "is not UTF-8");
  }

  NodeId parse() {
    const Matches all = alternatives(0);
    if (at_ < text_.size()) fail(at_, "has a ')' that nothing opens");
    const NodeId any = options_.is_search
                           ? syntax_.repeat(of_set(CharRanges::all(), 0), 0, kUnbounded)
                           : syntax_.empty();
    std::vector<NodeId> ways;
    for (int begin = 0; begin < 2; ++begin) {
      for (int end = 0; end < 2; ++end) {
        ways.push_back(syntax_.sequence({begin == 0 ? any : syntax_.empty(), all.nodes[begin][end],
                                         end == 0 ? any : syntax_.empty()}));
      }
    }
    return syntax_.choice(ways);
  }

 private:
  [[noreturn]] void fail(size_t at, std::string_view what) const {
    throw_error(ErrorCode::kInvalidArgument, "{} {} (at position {})", options_.where, what, at);
  }
  [[noreturn]] void refuse(size_t at, std::string_view what) const {
    throw_error(ErrorCode::kUnsupported, "{} has {}, which is not supported (at position {})",
                options_.where, what, at);
  }

  bool at_end() const { return at_ == text_.size(); }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  // What an atom that begins there matches.
  NodeId of_set(const CharRanges& set, size_t begin) {
    if (options_.only == nullptr) return syntax_.characters(set, options_.spelling);
    const CharRanges allowed = set.intersected(*options_.only);
    if (allowed.empty()) fail(begin, options_.without);
    return syntax_.characters(allowed, options_.spelling);
  }
  Matches plain(NodeId node) const {
    Matches matches;
    matches.nodes[0][0] = node;
    return matches;
  }

  Matches alternatives(int depth) {
    std::array<std::array<std::vector<NodeId>, 2>, 2> all;
    do {
      const Matches one = sequence(depth);
      for (int begin = 0; begin < 2; ++begin) {
        for (int end = 0; end < 2; ++end) all[begin][end].push_back(one.nodes[begin][end]);
      }
    } while (take("|"));
    Matches matches;
    for (int begin = 0; begin < 2; ++begin) {
      for (int end = 0; end < 2; ++end) {
        matches.nodes[begin][end] = syntax_.choice(with_shared_beginnings(all[begin][end]));
      }
    }
    return matches;
  }

  // Many texts become one node that tells them apart byte by byte.
  std::vector<NodeId> with_shared_beginnings(const std::vector<NodeId>& alternatives) {
    std::vector<NodeId> others;
    std::vector<std::string> texts;
    for (const NodeId id : alternatives) {
      const Node& node = syntax_.node(id);
      if (node.kind == Node::Kind::kLiteral) {
        texts.emplace_back(syntax_.text(node));
      } else {
        others.push_back(id);
      }
    }
    if (texts.size() < kManyTexts) return alternatives;
    others.push_back(syntax_.choice_of_texts(std::move(texts)));
    return others;
  }

  Matches sequence(int depth) {
    std::vector<Matches> parts;
    std::string text;
    const auto end_text = [&] {
      if (!text.empty()) parts.push_back(plain(syntax_.literal(text)));
      text.clear();
    };
    while (!at_end() && text_[at_] != '|' && text_[at_] != ')') {
      const size_t begin = at_;
      const Matches part = quantified(atom(depth), begin);
      // Characters in a row are one text at once.
      const bool is_text =
          !part.is_anchored() && syntax_.node(part.nodes[0][0]).kind == Node::Kind::kLiteral;
      if (is_text) {
        text += syntax_.text(syntax_.node(part.nodes[0][0]));
        continue;
      }
      end_text();
      parts.push_back(part);
    }
    end_text();
    Matches all = plain(syntax_.empty());
    for (size_t i = parts.size(); i-- > 0;) all = joined(parts[i], all);
    return all;
  }

  // An anchor inside lets what stands on its other side match the empty text only.
  Matches joined(const Matches& left, const Matches& right) {
    if (!left.is_anchored() && !right.is_anchored()) {
      return plain(syntax_.sequence(left.nodes[0][0], right.nodes[0][0]));
    }
    std::array<std::array<std::vector<NodeId>, 2>, 2> all;
    const auto nullable = [this](NodeId id) { return syntax_.node(id).is_nullable; };
    for (int i = 0; i < 16; ++i) {
      const int begin = i & 1, end = i >> 1 & 1, second_begin = i >> 2 & 1, second_end = i >> 3;
      const NodeId a = left.nodes[begin][end], b = right.nodes[second_begin][second_end];
      if (a == syntax_.never() || b == syntax_.never()) continue;
      if (end == 0 && second_begin == 0) {
        all[begin][second_end].push_back(syntax_.sequence(a, b));
      } else if (end == 1 && second_begin == 1) {
        if (nullable(a) && nullable(b)) all[1][1].push_back(syntax_.empty());
      } else if (end == 1) {
        if (nullable(b)) all[begin][1].push_back(a);
      } else if (nullable(a)) {
        all[1][second_end].push_back(b);
      }
    }
    Matches matches;
    for (int begin = 0; begin < 2; ++begin) {
      for (int end = 0; end < 2; ++end) {
        matches.nodes[begin][end] = syntax_.choice(all[begin][end]);
      }
    }
    return matches;
  }

  Matches quantified(Matches matches, size_t begin) {
    for (bool is_first = true;; is_first = false) {
      const size_t at = at_;
      const auto counts = quantifier();
      if (!counts) return matches;
      if (!is_first) fail(at, "repeats a repeat; put the first one into a group");
      if (!take("?") && take("+")) refuse(at, "a possessive repeat");
      if (counts->second == 0) {
        matches = plain(syntax_.empty());
      } else if (matches.is_anchored()) {
        if (counts->second > 1) refuse(begin, "an anchor that is repeated");
        if (counts->first == 0) {
          matches.nodes[0][0] = syntax_.choice({matches.nodes[0][0], syntax_.empty()});
        }
      } else {
        matches = plain(syntax_.repeat(matches.nodes[0][0], counts->first, counts->second));
      }
    }
  }

  std::optional<std::pair<uint32_t, uint32_t>> quantifier() {
    if (take("*")) return {{0, kUnbounded}};
    if (take("+")) return {{1, kUnbounded}};
    if (take("?")) return {{0, 1}};
    // A brace that is no repeat is a character.
    const size_t start = at_;
    if (!take("{")) return std::nullopt;
    const auto least = count();
    const bool has_comma = take(",");
    const auto most = count();
    if (!take("}") || (!least && (!has_comma || !most))) {
      at_ = start;
      return std::nullopt;
    }
    const uint32_t min = least.value_or(0);
    const uint32_t max = most ? *most : has_comma ? kUnbounded : min;
    if (min > max) fail(start, "has a repeat whose least count is above its most");
    if (min > kMaxRepeatCount || (max > kMaxRepeatCount && max != kUnbounded)) {
      fail(start, fmt::format("has a repeat of more than {} times", kMaxRepeatCount));
    }
    return {{min, max}};
  }

  std::optional<uint32_t> count() {
    const size_t begin = at_;
    uint32_t value = 0;
    for (; !at_end() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = std::min(value * 10 + static_cast<uint32_t>(text_[at_] - '0'), 2 * kMaxRepeatCount);
    }
    return at_ == begin ? std::nullopt : std::optional(value);
  }

  Matches atom(int depth) {
    const size_t begin = at_;
    if (take("(")) return group(depth, begin);
    if (take("[")) return plain(of_set(char_class(begin), begin));
    if (take(".")) {
      return plain(
          of_set(CharRanges{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.negated(), begin));
    }
    Matches anchor;
    if (take("^")) {
      anchor.nodes[1][0] = syntax_.empty();
      return anchor;
    }
    if (take("$")) {
      anchor.nodes[0][1] = syntax_.empty();
      return anchor;
    }
    if (take("\\")) {
      CharRanges set;
      escape(begin, set);
      return plain(of_set(set, begin));
    }
    const bool may_be_text = quantifier() == std::nullopt;
    if (!may_be_text) fail(begin, "repeats nothing");
    const uint32_t c = text::next_character(text_, at_);
    return plain(of_set({{c, c}}, begin));
  }

  Matches group(int depth, size_t begin) {
    if (depth == kMaxGroupDepth) {
      fail(begin, fmt::format("has groups more than {} deep", kMaxGroupDepth));
    }
    if (take("?")) {
      if (take("P<") || (!text_.substr(at_).starts_with("<=") &&
                         !text_.substr(at_).starts_with("<!") && take("<"))) {
        const size_t end = text_.find('>', at_);
        if (end == text_.npos || end == at_) fail(begin, "has a group whose name does not end");
        at_ = end + 1;
      } else if (!take(":")) {
        const bool looks = take("=") || take("!") || take("<=") || take("<!");
        refuse(begin, looks ? "look-around" : "a group with flags");
      }
    }
    const Matches inner = alternatives(depth + 1);
    if (!take(")")) fail(begin, "has a group that is not closed");
    return inner;
  }

  uint32_t hex(size_t begin, size_t least, size_t most) {
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < most && !at_end(); ++digits, ++at_) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (digits < least) fail(begin, "has an escape with too few hexadecimal digits");
    return value;
  }

  // Adds what the escape stands for. Returns the character if it is a single one.
  // Digits, words and white space are those that all three know; where they are negated, by the
  // letter or by the class around it, what any of the three takes for one: then that is what
  // matches least.
  std::optional<uint32_t> escape(size_t begin, CharRanges& set, bool is_negated = false) {
    if (at_end()) fail(begin, "ends with a backslash");
    const uint32_t c = text::next_character(text_, at_);
    const auto single = [&set](uint32_t value) {
      set.add(value, value);
      return std::optional(value);
    };
    switch (c) {
      case 'd':
        set.add(is_negated ? unicode_classes().digits : digits());
        return std::nullopt;
      case 'D':
        set.add((is_negated ? digits() : unicode_classes().digits).negated());
        return std::nullopt;
      case 'w':
        set.add(is_negated ? unicode_classes().word_characters : word_characters());
        return std::nullopt;
      case 'W':
        set.add((is_negated ? word_characters() : unicode_classes().word_characters).negated());
        return std::nullopt;
      case 's':
        set.add(is_negated ? unicode_white_space() : white_space());
        return std::nullopt;
      case 'S':
        set.add((is_negated ? white_space() : unicode_white_space()).negated());
        return std::nullopt;
      case 't':
        return single('\t');
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case '0':
        if (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') refuse(begin, "an octal escape");
        return single(0);
      case 'x':
        return single(hex(begin, 2, 2));
      case 'u':
        return single(unicode_escape(begin));
      default:
        break;
    }
    if (c >= '1' && c <= '9') refuse(begin, "a back-reference");
    if (c == 'b' || c == 'B') refuse(begin, "a boundary of words");
    if (c == 'p' || c == 'P') refuse(begin, "a class of Unicode");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      refuse(begin, fmt::format("the escape \\{}", static_cast<char>(c)));
    }
    return single(c);
  }

  uint32_t unicode_escape(size_t begin) {
    if (take("{")) {
      const uint32_t value = hex(begin, 1, 6);
      if (!take("}") || value > kLastCharacter) fail(begin, "has an escape that is no character");
      return value;
    }
    const uint32_t high = hex(begin, 4, 4);
    const size_t behind = at_;
    if (high >= 0xD800 && high < 0xDC00 && take("\\u")) {
      const uint32_t low = hex(begin, 4, 4);
      if (low >= 0xDC00 && low < 0xE000) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
      at_ = behind;
    }
    return high;
  }

  CharRanges char_class(size_t begin) {
    CharRanges set;
    const bool is_negated = take("^");
    if (!at_end() && text_[at_] == ']') refuse(begin, "a class that begins with ']'");
    while (!take("]")) {
      if (at_end()) fail(begin, "has a class that is not closed");
      const size_t item = at_;
      if (text_.substr(at_).starts_with("[:")) refuse(item, "a named class");
      const auto first = class_character(begin, set, is_negated);
      const bool is_range = text_.substr(at_).starts_with("-") &&
                            !text_.substr(at_).starts_with("-]") && at_ + 1 < text_.size();
      if (!is_range) continue;
      ++at_;
      CharRanges ignored;
      const auto last = class_character(begin, ignored, is_negated);
      if (!first || !last) {  // a class and a dash
        set.add('-', '-');
        set.add(ignored);
        continue;
      }
      if (*first > *last) fail(item, "has a range that ends before it begins");
      set.add(*first, *last);
    }
    return is_negated ? set.negated() : set;
  }

  std::optional<uint32_t> class_character(size_t begin, CharRanges& set, bool is_negated) {
    if (at_end()) fail(begin, "has a class that is not closed");
    const size_t at = at_;
    if (take("\\b")) {
      set.add('\b', '\b');
      return '\b';
    }
    if (take("\\")) return escape(at, set, is_negated);
    const uint32_t c = text::next_character(text_, at_);
    set.add(c, c);
    return c;
  }

  std::string_view text_;
  size_t at_ = 0;
  Syntax& syntax_;
  const RegexOptions& options_;
};

}  // namespace

CharRanges white_space() { return {{'\t', '\r'}, {' ', ' '}}; }

CharRanges unicode_white_space() {
  return {{'\t', '\r'},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
          {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
          {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

NodeId compile_regex(std::string_view pattern, Syntax& syntax, const RegexOptions& options) {
  return RegexParser(pattern, syntax, options).parse();
}

}  // namespace nanovllm::grammar
