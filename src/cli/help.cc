#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <vector>

namespace nanovllm::cli {
namespace {

constexpr size_t kWidth = 80;   // columns of a line
constexpr size_t kColumn = 31;  // where what an option means begins

// Words from `column` on; further lines begin at `indent`.
void append_wrapped(std::string& out, std::string_view text, size_t column, size_t indent) {
  bool is_first = true;  // of its line
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (!is_first && column + 1 + end > kWidth) {
      out += fmt::format("\n{:{}}", "", indent);
      column = indent;
      is_first = true;
    }
    out += fmt::format("{}{}", is_first ? "" : " ", text.substr(0, end));
    column += end + (is_first ? 0 : 1);
    is_first = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  out += "\n";
}

void append_paragraphs(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(' ')) {
      out += fmt::format("{}\n", line);
    } else {
      append_wrapped(out, line, 0, 0);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void append_entry(std::string& out, const std::string& name, const std::string& meaning) {
  const std::string left = "  " + name;
  const bool fits = left.size() + 2 <= kColumn;
  out += fits ? fmt::format("{:{}}", left, kColumn) : fmt::format("{}\n{:{}}", left, "", kColumn);
  append_wrapped(out, meaning, kColumn, kColumn);
}

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

std::string placeholder(const CLI::Option& option) {
  std::string text = option.get_option_text();
  if (text.empty()) text = option.get_type_name();
  text.resize(std::min(text.find(':'), text.size()));  // what it is checked for stands behind
  const bool is_list = option.get_option_text().empty() && option.get_expected_max() > 1;
  return text + (is_list ? "..." : "");
}

std::string name_of(const CLI::Option& option) {
  if (option.get_positional()) {
    std::string name = option.get_name(true, false);
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name + (option.get_expected_max() > 1 ? "..." : "");
  }
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string relation(const char* words, const std::set<CLI::Option*>& others) {
  std::set<std::string> names;
  for (const CLI::Option* other : others) {
    names.insert(other->get_positional() ? name_of(*other) : other->get_name());
  }
  return names.empty() ? "" : fmt::format("; {} {}", words, fmt::join(names, ", "));
}

std::string meaning_of(const CLI::Option& option) {
  std::string text = option.get_description() + relation("needs", option.get_needs()) +
                     relation("not with", option.get_excludes());
  const bool says_default = text.find("(default: ") != text.npos;
  if (!takes_value(option) || option.get_required() || says_default) return text;
  const std::string value = option.get_default_str();
  return fmt::format("{} (default: {})", text, value.empty() ? "none" : value);
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string text = "Usage: " + name + " [OPTIONS]";
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string argument = name_of(*option);
    text += " " + (option->get_required() ? argument : "[" + argument + "]");
  }
  return text + (app.get_require_subcommand_min() > 0 ? " COMMAND" : "");
}

void append_options(std::string& out, const CLI::App& app, const std::string& group,
                    bool positional) {
  std::string entries;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != group || option->get_positional() != positional) continue;
    const std::string value = positional || !takes_value(*option) ? "" : placeholder(*option);
    append_entry(entries, name_of(*option) + (value.empty() ? "" : " " + value),
                 meaning_of(*option));
  }
  if (!entries.empty()) {
    out += fmt::format("\n{}:\n{}", positional ? "Positionals" : group, entries);
  }
}

}  // namespace

std::string help_text(const CLI::App& app, const std::string& name) {
  std::string out;
  append_paragraphs(out, app.get_description());
  out += "\n";
  append_wrapped(out, usage(app, name), 0, 2);
  for (const bool positional : {true, false}) {
    for (const std::string& group : app.get_groups()) {
      if (!group.empty()) append_options(out, app, group, positional);
    }
  }
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) out += "\nCommands:\n";
  for (const CLI::App* command : commands) {
    append_entry(out, command->get_name(), command->get_description());
  }
  const std::string footer = app.get_footer();
  if (!footer.empty()) out += "\n";
  append_paragraphs(out, footer);
  return out;
}

}  // namespace nanovllm::cli
