#include "text/regex_syntax.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "text/char_set.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

constexpr int kMaxDepth = 100;  // of groups and of classes in classes

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& origin)
      : pattern_(pattern), origin_(origin) {}

  std::string run() {
    alternatives(0);
    if (!done()) corrupt("has a ')' too many");
    return std::move(out_);
  }

 private:
  bool done() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool accept(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void corrupt(const std::string& what) const {
    throw_error(ErrorCode::kCorruptData, "{}: the regular expression '{}' {}", origin_,
                printable(pattern_), what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw_error(ErrorCode::kUnsupported,
                "{}: the regular expression '{}' has {}, which is not "
                "supported",
                origin_, printable(pattern_), what);
  }

  // Up to the end of the group or of the pattern.
  void alternatives(int depth) {
    if (depth > kMaxDepth) unsupported("groups nested too deeply");
    while (!done() && peek() != ')') {
      if (accept("|")) {
        out_ += '|';
        continue;
      }
      const size_t atom = out_.size();
      if (accept("(")) {
        if (group(depth)) return;
      } else if (accept("[")) {
        out_ += char_class(0).regex();
      } else if (accept("\\")) {
        escape();
      } else {
        literal();
      }
      quantifiers(atom);
    }
  }

  void literal() {
    const size_t length = utf8_length(peek());
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  // After '('. True when the rest of the enclosing group has been read too.
  bool group(int depth) {
    if (accept("?#")) {
      const size_t end = pattern_.find(')', at_);
      if (end == pattern_.npos) corrupt("has a comment that does not end");
      at_ = end + 1;
      return false;
    }
    out_ += '(';
    for (const std::string_view start : {"?:", "?=", "?!", "?>", "?<=", "?<!"}) {
      if (accept(start)) {
        out_ += start;
        return finish_group(depth);
      }
    }
    if (accept("?<")) {
      const size_t end = pattern_.find('>', at_);
      if (end == pattern_.npos) corrupt("has a group name that does not end");
      out_ += "?<";
      out_ += pattern_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else if (accept("?")) {
      return options(depth);
    } else if (peek() == '*') {
      unsupported("a '(*'");
    }
    return finish_group(depth);
  }

  bool finish_group(int depth) {
    alternatives(depth + 1);
    if (!accept(")")) corrupt("has a group that does not end");
    out_ += ')';
    return false;
  }

  // After "(?": the flags i and m (which is PCRE2's s).
  bool options(int depth) {
    out_ += '?';
    while (peek() != ':' && peek() != ')') {
      const char flag = peek();
      if (flag != 'i' && flag != 'm' && flag != '-') {
        unsupported(fmt::format("a '(?{}'", flag == '\0' ? ' ' : flag));
      }
      out_ += flag == 'm' ? 's' : flag;
      ++at_;
    }
    out_ += ':';
    if (accept(":")) return finish_group(depth);
    // Without a colon the flags hold, alternatives included, up to the end of the group.
    ++at_;
    alternatives(depth + 1);
    out_ += ')';
    return true;
  }

  // A quantifier after a quantifier repeats what that one made; so does the + after an interval,
  // which makes it possessive in PCRE2.
  void quantifiers(size_t atom) {
    for (bool first = true;; first = false) {
      std::string quantifier;
      if (peek() == '*' || peek() == '+' || peek() == '?') {
        quantifier = peek();
        ++at_;
        if (peek() == '?' || peek() == '+') quantifier += pattern_[at_++];
      } else if (auto interval = read_interval()) {
        quantifier = std::move(*interval);
      } else {
        return;
      }
      if (!first) {
        out_.insert(atom, "(?:");
        out_ += ')';
      }
      out_ += quantifier;
    }
  }

  std::optional<std::string> read_interval() {
    if (peek() != '{') return std::nullopt;
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t start = end;
      while (end < pattern_.size() && pattern_[end] >= '0' && pattern_[end] <= '9') ++end;
      return pattern_.substr(start, end - start);
    };
    const std::string_view low = digits();
    const bool comma = end < pattern_.size() && pattern_[end] == ',';
    if (comma) ++end;
    const std::string_view high = comma ? digits() : low;
    if (end >= pattern_.size() || pattern_[end] != '}' || (low.empty() && high.empty())) {
      return std::nullopt;
    }
    at_ = end + 1;
    if (!comma) return fmt::format("{{{}}}", low);
    const bool lazy = accept("?");
    return fmt::format("{{{},{}}}{}", low.empty() ? "0" : low, high, lazy ? "?" : "");
  }

  void escape() {
    if (auto set = class_escape(false)) {
      out_ += set->regex();
      return;
    }
    if (done()) corrupt("ends with a backslash");
    const char c = peek();
    if (c == 'b' || c == 'B') {
      ++at_;
      const std::string word = word_set(false).regex();
      const char after = c == 'b' ? '!' : '=', other = c == 'b' ? '=' : '!';
      out_ += fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, after, other);
    } else if (std::string_view("AzZGRXKN").find(c) != std::string_view::npos ||
               (c >= '1' && c <= '9')) {
      ++at_;
      out_ += '\\';
      out_ += c;
    } else if (c == 'k' || c == 'g') {
      const size_t end = pattern_.find('>', at_);
      if (peek(1) != '<' || end == pattern_.npos) {
        corrupt(fmt::format("has a '\\{}' without <name>", c));
      }
      out_ += '\\';
      out_ += pattern_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else if (c == 'O') {
      ++at_;
      out_ += "(?s:.)";
    } else {
      out_ += fmt::format("\\x{{{:X}}}", escaped_character());
    }
  }

  // After a backslash: \s and the like, \p{...}; nothing for an escape that is one character.
  std::optional<CharSet> class_escape(bool in_class) {
    switch (peek()) {
      case 's':
        ++at_;
        return space_set();
      case 'S':
        ++at_;
        return space_set().negated();
      case 'd':
        ++at_;
        return digit_set();
      case 'D':
        ++at_;
        return digit_set().negated();
      case 'w':
        ++at_;
        return word_set(in_class);
      case 'W':
        ++at_;
        return word_set(in_class).negated();
      case 'h':
        ++at_;
        return hex_set();
      case 'H':
        ++at_;
        return hex_set().negated();
      default:
        break;
    }
    if ((peek() != 'p' && peek() != 'P') || peek(1) != '{') return std::nullopt;
    bool negative = peek() == 'P';
    at_ += 2;
    if (accept("^")) negative = !negative;
    const size_t end = pattern_.find('}', at_);
    if (end == pattern_.npos) corrupt("has a \\p{ that does not end");
    const std::string_view name = pattern_.substr(at_, end - at_);
    const auto set = property_set(name, in_class);
    if (!set) unsupported(fmt::format("the property '{}'", printable(name)));
    at_ = end + 1;
    return negative ? set->negated() : *set;
  }

  // After a backslash: the character it stands for.
  uint32_t escaped_character() {
    const char c = peek();
    constexpr std::string_view kNames = "ntrfvae";
    constexpr std::string_view kValues = "\n\t\r\f\v\a\x1B";
    if (const size_t i = kNames.find(c); c != '\0' && i != kNames.npos) {
      ++at_;
      return static_cast<uint8_t>(kValues[i]);
    }
    if (c >= '0' && c <= '7') return digits(8, 3);
    if (c == 'u') {
      ++at_;
      return digits(16, 4);
    }
    if (c == 'x') {
      ++at_;
      if (!accept("{")) {
        const uint32_t byte = digits(16, 2);
        if (byte >= 0x80) unsupported("a \\x that is half a character");
        return byte;
      }
      const uint32_t value = digits(16, 8);
      if (!accept("}")) corrupt("has a \\x{ that does not end");
      return value;
    }
    if (c == 'c' || c == 'C' || c == 'M') unsupported("a control or meta escape");
    const uint32_t value = decode_utf8(pattern_.data() + at_);
    at_ += utf8_length(c);
    return value;
  }

  uint32_t digits(int base, int at_most) {
    uint32_t value = 0;
    const char* begin = pattern_.data() + at_;
    const size_t length = std::min<size_t>(at_most, pattern_.size() - at_);
    at_ += std::from_chars(begin, begin + length, value, base).ptr - begin;
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      corrupt("names a character that does not exist");
    }
    return value;
  }

  // After '['.
  CharSet char_class(int depth) {
    if (depth > kMaxDepth) unsupported("classes nested too deeply");
    const bool negative = accept("^");
    CharSet set;
    std::optional<CharSet> left;  // of the && read last
    for (bool first = true; first || peek() != ']'; first = false) {
      if (done()) corrupt("has a class that does not end");
      if (accept("&&")) {
        left = left ? left->intersected(set) : set;
        set = CharSet();
        if (peek() == ']') break;
      } else if (pattern_.substr(at_).starts_with("[:")) {
        set.add(posix_class());
      } else if (accept("[")) {
        set.add(char_class(depth + 1));
      } else {
        class_member(set);
      }
    }
    ++at_;
    if (left) set = left->intersected(set);
    return negative ? set.negated() : set;
  }

  CharSet posix_class() {
    at_ += 2;
    const bool negative = accept("^");
    const size_t end = pattern_.find(":]", at_);
    if (end == pattern_.npos) corrupt("has a [: that does not end");
    const std::string_view name = pattern_.substr(at_, end - at_);
    const auto set = posix_set(name);
    if (!set) unsupported(fmt::format("the class [:{}:]", printable(name)));
    at_ = end + 2;
    return negative ? set->negated() : *set;
  }

  // A set escape, a character or a range.
  void class_member(CharSet& set) {
    if (peek() == '\\') {
      ++at_;
      if (const auto escape = class_escape(true)) {
        set.add(*escape);
        return;
      }
      --at_;
    }
    const uint32_t first = class_character();
    uint32_t last = first;
    const bool set_follows =
        peek(1) == '\\' && std::string_view("sSdDwWhHpP").find(peek(2)) != std::string_view::npos;
    if (peek() == '-' && peek(1) != ']' && peek(1) != '[' && peek(1) != '\0' && !set_follows) {
      ++at_;
      last = class_character();
    }
    if (last < first) corrupt("has a range that ends before it starts");
    set.add(first, last);
  }

  uint32_t class_character() {
    if (accept("\\")) {
      if (done()) corrupt("ends with a backslash");
      if (accept("b")) return 8;
      return escaped_character();
    }
    const uint32_t c = decode_utf8(pattern_.data() + at_);
    at_ += utf8_length(peek());
    return c;
  }

  std::string_view pattern_;
  const std::string& origin_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2_syntax(std::string_view pattern, const std::string& origin) {
  return Translator(pattern, origin).run();
}

}  // namespace nanovllm::text
