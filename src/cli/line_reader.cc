#include "cli/line_reader.h"

#include <histedit.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "cli/terminal.h"
#include "io/file.h"

namespace nanovllm::cli {

namespace {

constexpr int kHistoryLines = 1000;

// What the keys of common terminals send, where the editor does not know it from terminfo.
constexpr std::pair<const char*, const char*> kKeys[] = {
    {"^R", "em-inc-search-prev"}, {"\\e[H", "ed-move-to-beg"},  {"\\e[F", "ed-move-to-end"},
    {"\\e[1~", "ed-move-to-beg"}, {"\\e[4~", "ed-move-to-end"}, {"\\e[3~", "ed-delete-next-char"},
    {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"}};

}  // namespace

struct LineReader::Editor {
  explicit Editor(std::string prompt_text)
      : prompt(std::move(prompt_text)),
        line(el_init("nanovllm", stdin, stdout, stderr)),
        history(history_init()) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_CLIENTDATA, this);
    el_set(
        line, EL_PROMPT, +[](EditLine* from) {
          void* self = nullptr;
          el_get(from, EL_CLIENTDATA, &self);
          return static_cast<Editor*>(self)->prompt.data();
        });
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 1);  // the terminal is put right before a signal ends the program
    const char* const end = nullptr;
    for (const auto& [key, function] : kKeys) el_set(line, EL_BIND, key, function, end);
    el_source(line, nullptr);  // the user's own .editrc
  }
  ~Editor() {
    history_end(history);
    el_end(line);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::string prompt;
  EditLine* line;
  History* history;
};

LineReader::LineReader(std::string prompt) {
  if (!is_terminal(stdin) || !is_terminal(stdout)) return;
  std::setlocale(LC_CTYPE, "");  // editing by characters, not bytes
  editor_ = std::make_unique<Editor>(std::move(prompt));
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read() {
  std::string text;
  if (!interactive()) {
    int c = 0;
    while ((c = std::getc(stdin)) != EOF && c != '\n') {
      text += static_cast<char>(c);
      if (text.size() <= size_t{kMaxTextBytes}) continue;
      throw_error(ErrorCode::kCorruptData, "standard input: a line is longer than {} MiB",
                  kMaxTextBytes >> 20);
    }
    check_standard_input();
    if (c == EOF && text.empty()) return {};
    if (text.ends_with('\r')) text.pop_back();  // of a file from Windows
    return text;
  }
  const char* typed = nullptr;
  int length = 0;  // bytes, -1 for an error
  while ((typed = el_gets(editor_->line, &length)) == nullptr && length < 0 && errno == EINTR)
    std::puts("^C");  // which drops what is typed, as in a shell
  if (typed == nullptr || length <= 0) {
    std::puts("");
    return {};
  }
  text.assign(typed, static_cast<size_t>(length));
  if (text.ends_with('\n')) text.pop_back();
  HistEvent event;
  if (!text.empty()) ::history(editor_->history, &event, H_ENTER, text.c_str());
  return text;
}

}  // namespace nanovllm::cli
