#include "grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

constexpr int kMaxGroups = 100;            // one in another
constexpr uint32_t kMaxRepeats = 1000000;  // of one part

class GbnfParser {
 public:
  GbnfParser(std::string_view text, Syntax& syntax) : text_(text), syntax_(syntax) {
    if (text::find_invalid_utf8(text) != text.size()) fail("the text is not UTF-8");
  }

  NodeId parse() {
    for (skip_space(true); at_ < text_.size(); skip_space(true)) rule();
    for (const auto& [name, rule] : rules_) {
      if (!rule.is_defined) {
        throw_error(ErrorCode::kInvalidArgument, "grammar: line {}: the rule \"{}\" is not defined",
                    line_of(rule.at), printable(name));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      throw_error(ErrorCode::kInvalidArgument, "grammar: the rule \"root\" is not defined");
    }
    return syntax_.rule(root->second.id);
  }

 private:
  struct Rule {
    RuleId id;
    size_t at;  // where it is named first
    bool is_defined = false;
  };

  [[noreturn]] void fail(std::string_view what) const { fail_at(at_, what); }
  [[noreturn]] void fail_at(size_t at, std::string_view what) const {
    throw_error(ErrorCode::kInvalidArgument, "grammar: line {}: {}", line_of(at), what);
  }
  size_t line_of(size_t at) const {
    const auto begin = text_.begin();
    return 1 +
           static_cast<size_t>(std::count(begin, begin + static_cast<std::ptrdiff_t>(at), '\n'));
  }

  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  void skip_space(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        if (at_ == text_.size()) return;
        if (!lines) return;
      } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
        return;
      }
    }
  }

  std::string_view name() {
    const size_t begin = at_;
    const auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Rule& rule_of(std::string_view name) {
    const auto [found, is_new] = rules_.try_emplace(std::string(name));
    if (is_new) {
      found->second = {syntax_.new_rule(fmt::format("grammar: the rule \"{}\"", printable(name))),
                       at_};
    }
    return found->second;
  }

  void rule() {
    const std::string_view its_name = name();
    if (its_name.empty()) fail("expected the name of a rule");
    skip_space(false);
    if (!take("::=")) fail("expected '::=' behind the name of a rule");
    skip_space(true);
    Rule& rule = rule_of(its_name);
    if (rule.is_defined) fail(fmt::format("the rule \"{}\" is defined twice", printable(its_name)));
    rule.is_defined = true;
    const RuleId id = rule.id;
    syntax_.define(id, alternatives(0));
    if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') {
      fail("expected the end of the line behind a rule");
    }
  }

  NodeId alternatives(int depth) {
    std::vector<NodeId> all;
    do {
      skip_space(true);
      all.push_back(sequence(depth));
    } while (take("|"));
    return syntax_.choice(all);
  }

  NodeId sequence(int depth) {
    std::vector<NodeId> parts;
    for (auto part = element(depth); part; part = element(depth)) {
      parts.push_back(repeats(*part, depth > 0));
      skip_space(depth > 0);
      skip_before_bar(depth);
    }
    return syntax_.sequence(parts);
  }

  // Alternatives may begin on lines of their own.
  void skip_before_bar(int depth) {
    if (depth > 0) return;
    const size_t start = at_;
    skip_space(true);
    if (at_ == text_.size() || text_[at_] != '|') at_ = start;
  }

  std::optional<NodeId> element(int depth) {
    if (at_ == text_.size()) return std::nullopt;
    if (take("\"")) return literal();
    if (take("[")) return syntax_.characters(char_class(), Spelling::kText);
    if (take(".")) return syntax_.characters(CharRanges::all(), Spelling::kText);
    if (take("(")) {
      if (depth == kMaxGroups) fail(fmt::format("groups are more than {} deep", kMaxGroups));
      const NodeId inner = alternatives(depth + 1);
      skip_space(true);
      if (!take(")")) fail("a group is not closed");
      return inner;
    }
    const std::string_view its_name = name();
    if (its_name.empty()) {
      if (text_[at_] == '<') fail("tokens by name or number are not supported");
      return std::nullopt;
    }
    return syntax_.rule(rule_of(its_name).id);
  }

  NodeId repeats(NodeId body, bool lines) {
    for (;;) {
      skip_space(lines);
      if (take("*")) {
        body = syntax_.repeat(body, 0, kUnbounded);
      } else if (take("+")) {
        body = syntax_.repeat(body, 1, kUnbounded);
      } else if (take("?")) {
        body = syntax_.optional(body);
      } else if (take("{")) {
        body = counted(body);
      } else {
        return body;
      }
    }
  }

  NodeId counted(NodeId body) {
    skip_space(false);
    const auto min = number();
    skip_space(false);
    const bool has_comma = take(",");
    skip_space(false);
    const auto max = has_comma ? number() : min;
    skip_space(false);
    if (!take("}") || (!min && !max)) fail("expected a repeat such as {3}, {3,} or {3,5}");
    const uint32_t least = min.value_or(0);
    const uint32_t most = max.value_or(kUnbounded);
    if (least > most) fail("a repeat's least count is above its most");
    return syntax_.repeat(body, least, most);
  }

  std::optional<uint32_t> number() {
    const size_t begin = at_;
    uint32_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(text_[at_] - '0');
      if (value > kMaxRepeats) fail(fmt::format("a repeat of more than {} times", kMaxRepeats));
    }
    return begin == at_ ? std::nullopt : std::optional(value);
  }

  NodeId literal() {
    std::string bytes;
    const size_t begin = at_;
    while (!take("\"")) {
      if (at_ == text_.size()) fail_at(begin, "a literal is not closed");
      text::append_utf8(bytes, character());
    }
    return syntax_.literal(bytes);
  }

  CharRanges char_class() {
    CharRanges set;
    const size_t begin = at_;
    const bool is_negated = take("^");
    while (!take("]")) {
      if (at_ == text_.size()) fail_at(begin, "a class is not closed");
      const uint32_t first = character();
      uint32_t last = first;
      if (text_.substr(at_).starts_with("-") && !text_.substr(at_).starts_with("-]")) {
        ++at_;
        if (at_ == text_.size()) fail_at(begin, "a class is not closed");
        last = character();
      }
      if (first > last) fail("a range of characters ends before it begins");
      set.add(first, last);
    }
    return is_negated ? set.negated() : set;
  }

  uint32_t character() {
    if (!take("\\")) return text::next_character(text_, at_);
    if (take("x")) return hex(2);
    if (take("u")) return hex(4);
    if (take("U")) return hex(8);
    if (at_ == text_.size()) fail("the grammar ends with a backslash");
    const char c = text_[at_++];
    switch (c) {
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      default:
        --at_;
        fail(
            "an escape that is not known; expected one of \\t \\r \\n \\\\ \\\" \\[ \\] \\x \\u "
            "\\U");
    }
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : ' ';
      const char lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') {
        value = value << 4 | static_cast<uint32_t>(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value << 4 | static_cast<uint32_t>(lower - 'a' + 10);
      } else {
        fail(fmt::format("expected {} hexadecimal digits", digits));
      }
    }
    if (value > kLastCharacter || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("an escape that is no character");
    }
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  Syntax& syntax_;
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace

NodeId compile_gbnf(std::string_view text, Syntax& syntax) {
  return GbnfParser(text, syntax).parse();
}

}  // namespace nanovllm::grammar
