// `nanovllm tokenize`: text to token ids and back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "text/tokenizer.h"

namespace nanovllm::cli {
namespace {

struct Options {
  std::string model;
  std::optional<std::string> first;
  std::vector<std::string> texts;
  bool ids = false;
  bool show = false;
  bool count = false;
  bool no_special = false;
  bool keep_special = false;
};

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// "1 2 3", "1,2,3" or "[1, 2, 3]".
std::vector<int32_t> parse_ids(std::string text) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream stream(text);
  std::vector<int32_t> ids;
  int32_t id = 0;
  while (stream >> std::ws && !stream.eof()) {
    if (stream >> id) {
      ids.push_back(id);
      continue;
    }
    throw_error(ErrorCode::kInvalidArgument, "--ids wants token ids separated by spaces or commas");
  }
  return ids;
}

// The pieces side by side, each in another colour than its neighbour; what a terminal would swallow
// is escaped.
void show_pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  int color = 0;
  std::string line;
  for (const int32_t id : ids) {
    std::string piece = tokenizer.id_to_token(id).value_or("?");
    std::string shown;
    for (const char c : piece) {
      shown +=
          static_cast<unsigned char>(c) < 0x20 ? fmt::format("\\x{:02x}", c) : std::string(1, c);
    }
    line += colored(stdout, shown, 1 + color % 6) + dim(stdout, fmt::format("({}) ", id));
    ++color;
  }
  fmt::print("{}\n", line);
}

// Nothing stands for them in the text, as in Hugging Face's libraries.
void tell_unknown(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<int32_t> unknown;
  for (const int32_t id : ids) {
    if (!tokenizer.id_to_token(id)) unknown.push_back(id);
  }
  if (unknown.empty()) return;
  fmt::print(stderr, "nanovllm: left out, not in the vocabulary: {}\n", fmt::join(unknown, ", "));
}

int tokenize(const Options& options) {
  const auto tokenizer = Tokenizer::load(options.model);
  std::vector<std::string> texts = options.texts;
  texts.insert(texts.begin(), options.first ? *options.first : read_standard_input());
  for (const std::string& text : texts) {
    if (options.ids) {
      const std::vector<int32_t> ids = parse_ids(text);
      tell_unknown(*tokenizer, ids);
      fmt::print("{}\n", tokenizer->decode(ids, !options.keep_special));
      continue;
    }
    const std::vector<int32_t> ids = tokenizer->encode(text, !options.no_special);
    if (options.count) {
      fmt::print("{}\n", ids.size());
    } else if (options.show) {
      show_pieces(*tokenizer, ids);
    } else {
      fmt::print("{}\n", nlohmann::json(ids).dump());
    }
  }
  return kExitOk;
}

}  // namespace

Command add_tokenize(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("model", options->model, "model folder")->required();
  app.add_option("text", options->first,
                 "text, or ids with --ids, or several (default: standard input)");
  // Further texts come as what is left over: CLI11 would take "[1, 2]" in a list for two of them.
  app.allow_extras();
  app.parse_complete_callback([&app, options] {
    bool may_be_flag = true;
    for (const std::string& text : app.remaining()) {
      if (may_be_flag && text == "--") {
        may_be_flag = false;
        continue;
      }
      if (may_be_flag && text.size() > 1 && text[0] == '-') throw CLI::ExtrasError({text});
      options->texts.push_back(text);
    }
  });
  app.add_flag("--ids", options->ids, "the other way: ids to text");
  app.add_flag("--show", options->show, "the pieces in colour, each with its id");
  app.add_flag("--count", options->count, "only how many tokens");
  app.add_flag("--no-special", options->no_special,
               "add no special tokens (BOS and the like) around the text");
  app.add_flag("--no-skip-special-tokens", options->keep_special,
               "with --ids: show special tokens in the text");
  app.footer(
      "Each text gives one line: a JSON list of ids, or with --ids the text. Ids that are not in\n"
      "the vocabulary are left out of the text, and named on stderr. Texts may begin with a dash behind\n"
      "MODEL --.\n"
      "  nanovllm tokenize models/demo \"Once upon a time\"\n"
      "  nanovllm tokenize models/demo --ids \"12 7 99\"");
  return [options] { return tokenize(*options); };
}

}  // namespace nanovllm::cli
