#include "grammar/member_style.h"

namespace nanovllm::grammar {
namespace {

// Of a name that stands between tags, and of an argument in Python as parsers of calls take it.
bool is_tag_key(std::string_view name) {
  return !name.empty() && name.find_first_of("<>\n\r") == name.npos;
}
bool is_python_key(std::string_view name) {
  constexpr std::string_view kFirst = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
  return !name.empty() && kFirst.find(name[0]) != kFirst.npos &&
         name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz0123456789") == name.npos;
}

}  // namespace

std::optional<MemberStyle> member_style(std::string_view name, const TokenIndex& tokens,
                                        Syntax& syntax, std::vector<std::string>& excluded) {
  const auto literal = [&](std::string_view text) {
    return syntax.literal(tokens.with_symbols(text));
  };
  const NodeId line = syntax.optional(syntax.literal("\n"));
  if (name == "qwen_xml") {
    excluded.insert(excluded.end(), {"</parameter>", "\n<parameter=", "\n</function>"});
    return MemberStyle{.before_key = syntax.sequence(line, literal("<parameter=")),
                       .behind_key = literal(">\n"),
                       .behind_value = literal("\n</parameter>"),
                       .between = syntax.empty(),
                       .is_key = is_tag_key,
                       .further_keys = "[A-Za-z0-9_.-]{1,64}",
                       .has_plain_strings = true};
  }
  if (name == "glm_xml") {
    excluded.emplace_back("</arg_value>");
    return MemberStyle{
        .before_key = syntax.sequence(line, literal("<arg_key>")),
        .behind_key = syntax.sequence({literal("</arg_key>"), line, literal("<arg_value>")}),
        .behind_value = literal("</arg_value>"),
        .between = syntax.empty(),
        .is_key = is_tag_key,
        .further_keys = "[A-Za-z0-9_.-]{1,64}",
        .has_plain_strings = true};
  }
  if (name == "pythonic") {
    return MemberStyle{.before_key = syntax.empty(),
                       .behind_key = syntax.literal("="),
                       .behind_value = syntax.empty(),
                       .between = syntax.literal(", "),
                       .is_key = is_python_key,
                       .further_keys = "[A-Za-z_][A-Za-z0-9_]{0,63}",
                       .has_plain_strings = false};
  }
  return std::nullopt;
}

}  // namespace nanovllm::grammar
