// `nanovllm tokenize`: text to token ids and back.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "base/byte_order_mark.h"
#include "base/check.h"
#include "base/message.h"
#include "cli/commands.h"
#include "cli/input_lines.h"
#include "cli/model_option.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "io/file.h"
#include "io/gguf.h"
#include "nanovllm/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace nanovllm::cli {
namespace {

struct TokenizeOptions {
  ModelOption model;
  std::optional<std::string> first;
  std::string input;
  std::vector<std::string> texts;
  bool ids = false;
  bool show = false;
  bool count = false;
  bool no_special = false;
  bool keep_special = false;
};

// Nothing where a Ctrl-C came. Not by a stream, which would read on behind the end that a terminal
// tells once.
std::optional<std::string> read_standard_input() {
  std::string text;
  std::array<char, 1 << 16> part;
  while (true) {
    pollfd wanted = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    ::poll(&wanted, 1, -1);  // a signal ends it, unlike read()
    if (InterruptGuard::interrupted()) return std::nullopt;
    if (wanted.revents == 0) continue;
    const ssize_t size = ::read(STDIN_FILENO, part.data(), part.size());
    if (size == 0) return std::string(without_byte_order_mark(text));
    if (size < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      throw_error(ErrorCode::kIo, "cannot read standard input: {}", std::strerror(errno));
    }
    text.append(part.data(), static_cast<size_t>(size));
    if (text.size() <= size_t{kMaxTextBytes}) continue;
    throw_error(ErrorCode::kCorruptData, "standard input: longer than {} MiB", kMaxTextBytes >> 20);
  }
}

std::optional<std::string> read_input(const std::string& path) {
  if (path.empty() || path == "-") return read_standard_input();
  return read_text_file(path, InputLines::kMaxLineBytes);
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

// The bytes of the text that a token stands for, where its vocabulary spells bytes (GPT-2's way);
// else the token as the vocabulary has it.
std::string bytes_of(const Tokenizer& tokenizer, int32_t id) {
  const std::string piece = tokenizer.id_to_token(id).value_or("?");
  std::string bytes;
  text::append_spelled_bytes(bytes, piece);
  const bool spells_bytes =
      tokenizer.decode(std::vector<int32_t>{id}, false) == text::replace_invalid_utf8(bytes);
  return spells_bytes ? bytes : piece;
}

// As it is but for parts of characters and what a terminal would swallow.
std::string escaped(std::string_view bytes) {
  std::string shown;
  for (size_t valid = text::find_invalid_utf8(bytes); !bytes.empty();) {
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t length = valid > 0 ? static_cast<size_t>(text::utf8_length(bytes[0])) : 1;
    const uint32_t c = valid > 0 ? text::decode_utf8(bytes.data()) : lead;
    if (c == '\n') {
      shown += "\\n";
    } else if (valid == 0 || c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      for (const char byte : bytes.substr(0, length)) {
        shown += fmt::format("\\x{:02x}", byte & 0xFF);
      }
    } else {
      shown += bytes.substr(0, length);
    }
    bytes.remove_prefix(length);
    valid = valid > 0 ? valid - length : text::find_invalid_utf8(bytes);
  }
  return shown;
}

// The pieces side by side, each in another colour than its neighbour.
void show_pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  int color = 0;
  std::string line;
  for (const int32_t id : ids) {
    line += colored(stdout, escaped(bytes_of(tokenizer, id)), 1 + color % 6) +
            dim(stdout, fmt::format("({}) ", id));
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
  print_message("nanovllm: left out, not in the vocabulary: {}\n", fmt::join(unknown, ", "));
}

int tokenize(const TokenizeOptions& options) {
  if (!find_gguf(options.model.path)) check_is_folder(options.model.path);
  const auto tokenizer = Tokenizer::load(options.model.path);
  const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
  auto first = options.first ? options.first : read_input(options.input);
  if (!first) {
    print_error("interrupted");
    return kExitInterrupted;
  }
  std::vector<std::string> texts = options.texts;
  texts.insert(texts.begin(), std::move(*first));
  for (const std::string& text : texts) {
    if (options.ids) {
      const std::vector<int32_t> ids = parse_ids(text);
      tell_unknown(*tokenizer, ids);
      fmt::print("{}\n", shown_on(stdout, tokenizer->decode(ids, !options.keep_special)));
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
  auto options = std::make_shared<TokenizeOptions>();
  options->model.add_to(app);
  auto* first = app.add_option("text", options->first,
                               "text, or ids with --ids, or several (default: standard input)");
  app.add_option("--input", options->input, "file that is the text; - reads standard input")
      ->excludes(first);
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
  auto* ids = app.add_flag("--ids", options->ids, "the other way: ids to text");
  auto* show = app.add_flag("--show", options->show, "the pieces in colour, each with its id")
                   ->excludes(ids);
  app.add_flag("--count", options->count, "only how many tokens")->excludes(ids)->excludes(show);
  app.add_flag("--no-special", options->no_special,
               "add no special tokens (BOS and the like) around the text");
  app.add_flag("--no-skip-special-tokens", options->keep_special,
               "with --ids: show special tokens in the text");
  app.footer(
      "Each text gives a JSON list of ids on a line of its own, or with --ids the text and a new "
      "line. A file or standard input is one text of up to 64 MiB, with the new line at its end. "
      "Ids that are not in the vocabulary are left out of the text, and named on stderr. A text "
      "may begin with a dash behind MODEL --. --show writes parts of characters as \\xe4.\n"
      "Exit status: 0 done, 1 error, 2 usage, 130 interrupted.\n"
      "  nanovllm tokenize models/demo \"Once upon a time\"\n"
      "  nanovllm tokenize models/demo --ids \"12 7 99\"");
  return [options] {
    options->model.find();
    return tokenize(*options);
  };
}

}  // namespace nanovllm::cli
