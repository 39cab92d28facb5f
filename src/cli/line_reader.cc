#include "cli/line_reader.h"

#include <fmt/format.h>
#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cli/bracketed_paste.h"
#include "cli/input_lines.h"
#include "cli/terminal.h"
#include "cli/terminal_modes.h"
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
  explicit Editor(const std::vector<std::string>& commands)
      : words(commands), line(el_init("nanovllm", stdin, stdout, stderr)), history(history_init()) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_CLIENTDATA, this);
    el_set(
        line, EL_PROMPT, +[](EditLine* from) { return of(from).prompt.data(); });
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_EDITOR, "emacs");
    el_wset(line, EL_GETCFN, &read_character);
    const char* const end = nullptr;
    for (const auto& [key, function] : kKeys) el_set(line, EL_BIND, key, function, end);
    el_source(line, nullptr);  // the user's own .editrc
    take_interrupts();
    take_tabs();
    const bool takes_marks = can_take_pastes();
    modes.emplace(takes_marks);
    if (takes_marks) take_pastes();
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

  void take_tabs() const {
    const char* const end = nullptr;
    el_wset(line, EL_ADDFN, L"nanovllm-complete", L"Complete a command", &complete);
    el_set(line, EL_BIND, "^I", "nanovllm-complete", end);
  }

  // As much as all commands have that begin so; where that is nothing, the commands are shown.
  static unsigned char complete(EditLine* line, wint_t) {
    const LineInfoW* const info = el_wline(line);
    const std::wstring typed(info->buffer, info->cursor);
    std::vector<std::wstring> found;
    for (const std::string& word : of(line).words) {
      if (std::wstring wide(word.begin(), word.end()); wide.starts_with(typed)) {
        found.push_back(wide + L" ");
      }
    }
    if (typed.empty() || found.empty()) return CC_ERROR;
    size_t common = typed.size();
    const auto goes_on = [&](const std::wstring& one) {
      return common < one.size() && one[common] == found.front()[common];
    };
    while (std::ranges::all_of(found, goes_on)) ++common;
    if (common > typed.size()) {
      const std::wstring more = found.front().substr(typed.size(), common - typed.size());
      return el_winsertstr(line, more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    }
    std::puts("");
    for (const std::wstring& one : found) std::printf("%ls ", one.c_str());
    std::puts("");
    return CC_REDISPLAY;
  }

  static bool knows_sequences() {
    const char* terminal = std::getenv("TERM");
    return terminal != nullptr && terminal != std::string_view("dumb");
  }

  bool can_take_pastes() const {
    const char* kind = nullptr;
    el_get(line, EL_EDITOR, &kind);
    // In vi's way of editing, a key that begins with Escape would keep Escape itself waiting.
    return kind != nullptr && kind == std::string_view("emacs") && knows_sequences();
  }

  void take_pastes() const {
    el_wset(line, EL_ADDFN, L"nanovllm-paste", L"Insert a pasted text", &insert_paste);
    const char* const end = nullptr;
    el_set(line, EL_BIND, kPasteBegin, "nanovllm-paste", end);
    el_set(line, EL_SETTY, "-d", "-icrnl", "-inlcr", end);  // else "\r\n" comes as two newlines
  }

  static unsigned char insert_paste(EditLine* line, wint_t) {
    const auto text = read_paste(line, of(line).interrupt_key);
    of(line).interrupted = !text && errno == EINTR;
    if (!text) return CC_EOF;
    return el_winsertstr(line, text->c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // Instead of the editor's own, which leaves a line as it stands where its terminal changes.
  static int read_character(EditLine* line, wchar_t* character) {
    std::mbstate_t state = {};
    while (true) {
      switch (of(line).modes->wait()) {
        case TerminalModes::Event::kResized:
          of(line).draw_anew();
          continue;
        case TerminalModes::Event::kContinued:
          el_set(line, EL_REFRESH);
          continue;
        case TerminalModes::Event::kInterrupted:
          errno = EINTR;
          return -1;
        case TerminalModes::Event::kKey:
          break;
      }
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count <= 0) return static_cast<int>(count);
      const size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == 0 || length == 1) return 1;
      if (length == static_cast<size_t>(-1)) state = {};  // no character begins so
    }
  }

  // Terminals wrap what they show anew, so that the rows above the cursor are those of its width.
  void draw_anew() const {
    el_resize(line);
    if (knows_sequences()) {
      const int rows = rows_above_cursor();
      std::printf("\r%s\x1b[J", rows > 0 ? fmt::format("\x1b[{}A", rows).c_str() : "");
      std::fflush(stdout);
    }
    el_set(line, EL_REFRESH);
  }

  int rows_above_cursor() const {
    const int width = columns(stdout);
    const LineInfoW* const info = el_wline(line);
    int rows = 0;
    auto column = static_cast<int>(prompt.size());
    for (const wchar_t c : std::wstring_view(info->buffer, info->cursor)) {
      const bool is_newline = c == L'\n';
      if (!is_newline) column += c < L' ' ? 2 : std::max(::wcwidth(c), 0);  // ^A
      if (!is_newline && column <= width) continue;
      ++rows;
      column = is_newline ? 0 : column - width;
    }
    return rows + (column == width ? 1 : 0);
  }

  const std::vector<std::string> words;
  std::string prompt;
  EditLine* line;
  History* history;
  std::optional<TerminalModes> modes;
  wchar_t interrupt_key = 0;  // none, where the terminal has none
  bool interrupted = false;
};

LineReader::LineReader(std::string prompt, const std::vector<std::string>& commands)
    : prompt_(std::move(prompt)) {
  if (is_terminal(stdin) && is_terminal(stdout)) editor_ = std::make_unique<Editor>(commands);
}

LineReader::~LineReader() = default;

std::optional<LineReader::Text> LineReader::read() {
  if (interactive()) editor_->modes->show_keys(true);
  Text text;
  Got got = Got::kDropped;
  while ((got = read_text(text)) == Got::kDropped) std::puts("^C");  // as in a shell
  if (got == Got::kEnd) return {};
  HistEvent event;
  if (interactive() && !text.text.empty()) {
    ::history(editor_->history, &event, H_ENTER, text.text.c_str());
  }
  if (interactive()) editor_->modes->show_keys(false);
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
  InterruptGuard::reset();   // what it stopped has ended
  el_resize(editor_->line);  // the terminal may have changed since the last line
  int length = 0;            // bytes, -1 for an error
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
