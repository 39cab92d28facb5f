#include "cli/bracketed_paste.h"

#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "cli/input_lines.h"

namespace nanovllm::cli {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGQUIT, SIGTSTP};
termios terminal_before = {};

// Signal handlers may write, but not print. A terminal that is gone needs no marks.
void ask_terminal(std::string_view sequence) {
  [[maybe_unused]] const ssize_t count = ::write(STDOUT_FILENO, sequence.data(), sequence.size());
}
void begin_marks() { ask_terminal("\x1b[?2004h"); }
void end_marks() { ask_terminal("\x1b[?2004l"); }

// The editor does so too, unless the signal came in the moment in which it takes the terminal over.
void put_terminal_right() {
  if (tcgetpgrp(STDIN_FILENO) != getpgrp()) return;  // it is another program's now
  tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

// Whoever has the program ignore a signal means it.
void set_handler(int signal, void (*handler)(int)) {
  if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
}

void leave(int signal) {
  const int error = errno;
  end_marks();
  if (signal != SIGTSTP) put_terminal_right();
  std::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  sigset_t before;
  pthread_sigmask(SIG_UNBLOCK, &only, &before);
  std::raise(signal);
  // Only a program that was stopped goes on here.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::signal(signal, leave);
  begin_marks();
  errno = error;
}

}  // namespace

BracketedPaste::BracketedPaste() {
  tcgetattr(STDIN_FILENO, &terminal_before);
  for (const int signal : kSignals) set_handler(signal, leave);
  begin_marks();
}

BracketedPaste::~BracketedPaste() {
  end_marks();
  for (const int signal : kSignals) set_handler(signal, SIG_DFL);
}

std::optional<std::wstring> read_paste(EditLine* line, wchar_t interrupt_key) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  constexpr size_t kMaxCharacters = InputLines::kMaxLineBytes + 1;
  std::wstring text;
  bool after_return = false;  // which a newline belongs to
  while (!text.ends_with(kEnd)) {
    wchar_t character = 0;
    if (el_wgetc(line, &character) != 1) return {};
    if (character != 0 && character == interrupt_key) {
      errno = EINTR;
      return {};
    }
    const bool second_half = after_return && character == L'\n';
    after_return = character == L'\r';
    if (character == 0 || second_half) continue;
    text += after_return ? L'\n' : character;
    if (text.size() > kMaxCharacters + kEnd.size()) text.erase(kMaxCharacters, 1);
  }
  text.resize(text.size() - kEnd.size());
  return text;
}

}  // namespace nanovllm::cli
