#include "cli/line_reader.h"

#include <fmt/format.h>
#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cli/bracketed_paste.h"
#include "cli/input_lines.h"
#include "cli/terminal.h"
#include "io/file.h"

namespace nanovllm::cli {

namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr const char* kMorePrompt = "... ";
constexpr int kHistoryLines = 1000;

// What the keys of common terminals send, where the editor does not know it from terminfo.
constexpr std::pair<const char*, const char*> kKeys[] = {
    {"^R", "em-inc-search-prev"}, {"\\e[H", "ed-move-to-beg"},  {"\\e[F", "ed-move-to-end"},
    {"\\e[1~", "ed-move-to-beg"}, {"\\e[4~", "ed-move-to-end"}, {"\\e[3~", "ed-delete-next-char"},
    {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"}};

// Whether a text in quotes is all there.
bool is_closed(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t") + 1);
  return text.size() >= 2 * kQuotes.size() && text.ends_with(kQuotes);
}

// What stands between the quotes, whether those have lines of their own or not.
std::string unquoted(std::string_view text) {
  text = text.substr(0, text.rfind(kQuotes)).substr(kQuotes.size());
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

[[noreturn]] void fail_as_too_long() {
  throw_error(ErrorCode::kInvalidArgument, "the text is longer than {} MiB",
              InputLines::kMaxLineBytes >> 20);
}

}  // namespace

struct LineReader::Editor {
  Editor() : line(el_init("nanovllm", stdin, stdout, stderr)), history(history_init()) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_CLIENTDATA, this);
    el_set(
        line, EL_PROMPT, +[](EditLine* from) { return of(from).prompt.data(); });
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 1);  // the terminal is put right before a signal ends the program
    const char* const end = nullptr;
    for (const auto& [key, function] : kKeys) el_set(line, EL_BIND, key, function, end);
    el_source(line, nullptr);  // the user's own .editrc
    take_interrupts();
    take_pastes();
  }
  ~Editor() {
    history_end(history);
    el_end(line);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static Editor& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }

  // Ctrl-C is a key here: a signal that came while the editor does not wait for one would be lost,
  // and the terminal would throw away what was typed and printed around it.
  void take_interrupts() {
    termios terminal = {};
    if (tcgetattr(STDIN_FILENO, &terminal) != 0) return;
    interrupt_key = terminal.c_cc[VINTR];
    if (interrupt_key == _POSIX_VDISABLE) return;
    const std::string key = fmt::format("\\{:03o}", static_cast<unsigned>(interrupt_key));
    const char* const end = nullptr;
    el_wset(line, EL_ADDFN, L"nanovllm-interrupt", L"Drop what was typed", &interrupt);
    el_set(line, EL_BIND, key.c_str(), "nanovllm-interrupt", end);
    el_set(line, EL_BIND, "-a", key.c_str(), "nanovllm-interrupt", end);  // of vi's commands
    el_set(line, EL_SETTY, "-d", "intr=", "-intr", end);  // now, and when the user's own change
  }

  static unsigned char interrupt(EditLine* line, wint_t) {
    of(line).interrupted = true;
    return CC_EOF;
  }

  void take_pastes() {
    const char* kind = nullptr;
    const char* terminal = std::getenv("TERM");
    el_get(line, EL_EDITOR, &kind);
    // In vi's way of editing, a key that begins with Escape would keep Escape itself waiting.
    if (kind == nullptr || kind != std::string_view("emacs")) return;
    if (terminal == nullptr || terminal == std::string_view("dumb")) return;
    el_wset(line, EL_ADDFN, L"nanovllm-paste", L"Insert a pasted text", &insert_paste);
    const char* const end = nullptr;
    el_set(line, EL_BIND, BracketedPaste::kBegin, "nanovllm-paste", end);
    el_set(line, EL_SETTY, "-d", "-icrnl", "-inlcr", end);  // else "\r\n" comes as two newlines
    paste.emplace();
  }

  static unsigned char insert_paste(EditLine* line, wint_t) {
    const auto text = read_paste(line, of(line).interrupt_key);
    of(line).interrupted = !text && errno == EINTR;
    if (!text) return CC_EOF;
    return el_winsertstr(line, text->c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  std::string prompt;
  EditLine* line;
  History* history;
  std::optional<BracketedPaste> paste;
  wchar_t interrupt_key = 0;  // none, where the terminal has none
  bool interrupted = false;
};

LineReader::LineReader(std::string prompt) : prompt_(std::move(prompt)) {
  if (!is_terminal(stdin) || !is_terminal(stdout)) return;
  std::setlocale(LC_CTYPE, "");  // editing by characters, not bytes
  editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<LineReader::Text> LineReader::read() {
  Text text;
  Got got = Got::kDropped;
  while ((got = read_text(text)) == Got::kDropped) std::puts("^C");  // as in a shell
  if (got == Got::kEnd) return {};
  HistEvent event;
  if (interactive() && !text.text.empty()) {
    ::history(editor_->history, &event, H_ENTER, text.text.c_str());
  }
  return text;
}

LineReader::Got LineReader::read_text(Text& into) {
  std::string& text = into.text;
  Got got = read_line(prompt_, text);
  if (got != Got::kAll) return got;
  // A program may be pasted that begins with quotes and ends without.
  const bool several_lines = text.find('\n') != text.npos;
  into.verbatim = text.starts_with(kQuotes) && (!several_lines || is_closed(text));
  bool too_long = false;
  while (into.verbatim ? !is_closed(text) : text.ends_with('\\')) {
    std::string line;
    if ((got = read_line(kMorePrompt, line)) == Got::kDropped) return got;
    if (got == Got::kEnd && into.verbatim) {
      throw_error(ErrorCode::kInvalidArgument,
                  "the text that begins with {} has no {} at the end of a line", kQuotes, kQuotes);
    }
    if (!into.verbatim) text.pop_back();
    if (got == Got::kEnd) break;
    // What can't be kept is read all the same: the rest of a message is not another one.
    if (text.size() + line.size() >= InputLines::kMaxLineBytes) {
      too_long = true;
      text.resize(into.verbatim ? kQuotes.size() : 0);
    }
    text += "\n" + line;
  }
  if (too_long) fail_as_too_long();
  if (into.verbatim) text = unquoted(text);
  return Got::kAll;
}

LineReader::Got LineReader::read_line(const std::string& prompt, std::string& line) {
  if (interactive()) return edit_line(prompt, line);
  line.clear();
  int c = 0;
  while ((c = std::getc(stdin)) != EOF && c != '\n') {
    line += static_cast<char>(c);
    if (line.size() <= size_t{kMaxTextBytes}) continue;
    throw_error(ErrorCode::kIo, "standard input: a line is longer than {} MiB",
                kMaxTextBytes >> 20);
  }
  check_standard_input();
  if (c == EOF && line.empty()) return Got::kEnd;
  if (line.ends_with('\r')) line.pop_back();  // of a file from Windows
  return Got::kAll;
}

LineReader::Got LineReader::edit_line(const std::string& prompt, std::string& line) {
  editor_->prompt = prompt;
  editor_->interrupted = false;
  int length = 0;  // bytes, -1 for an error
  const char* const typed = el_gets(editor_->line, &length);
  if (typed == nullptr || length <= 0) {
    const bool signalled = typed == nullptr && length < 0 && errno == EINTR;
    if (signalled || editor_->interrupted) return Got::kDropped;
    std::puts("");
    return Got::kEnd;
  }
  line.assign(typed, static_cast<size_t>(length));
  while (line.ends_with('\n')) line.pop_back();  // Enter's, and those that end what was pasted
  if (line.size() > InputLines::kMaxLineBytes) fail_as_too_long();
  return Got::kAll;
}

}  // namespace nanovllm::cli
