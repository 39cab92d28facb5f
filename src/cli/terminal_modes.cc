#include "cli/terminal_modes.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "cli/terminal.h"

namespace nanovllm::cli {
namespace {

constexpr int kLeaving[] = {SIGTERM, SIGQUIT, SIGTSTP};
constexpr char kResizedByte = 'r', kContinuedByte = 'c';

// What signal handlers know.
termios terminal_before = {};
termios terminal_when_stopped = {};
volatile std::sig_atomic_t marks = 0;
volatile std::sig_atomic_t stopped = 0;
std::array<int, 2> events = {-1, -1};  // a pipe: any thread may get a signal

// Signal handlers may write, but not print. A terminal that is gone needs no marks.
void write_to(int file, std::string_view text) {
  [[maybe_unused]] const ssize_t count = ::write(file, text.data(), text.size());
}
void begin_marks() {
  if (marks != 0) write_to(STDOUT_FILENO, "\x1b[?2004h");
}
void end_marks() {
  if (marks != 0) write_to(STDOUT_FILENO, "\x1b[?2004l");
}

bool is_ours() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

// Whoever has the program ignore a signal means it.
void set_handler(int signal, void (*handler)(int)) {
  if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
}

void leave(int signal) {
  const int error = errno;
  end_marks();
  if (is_ours()) {
    if (signal == SIGTSTP) stopped = tcgetattr(STDIN_FILENO, &terminal_when_stopped) == 0 ? 1 : 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  }
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
  errno = error;
}

// In the background, the terminal is still another program's.
void go_on(int) {
  const int error = errno;
  if (stopped != 0 && is_ours()) {
    stopped = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_when_stopped);
    begin_marks();
    write_to(events[1], {&kContinuedByte, 1});
  }
  errno = error;
}

void note_size(int) {
  const int error = errno;
  write_to(events[1], {&kResizedByte, 1});
  errno = error;
}

}  // namespace

TerminalModes::TerminalModes(bool marks_pastes) {
  tcgetattr(STDIN_FILENO, &terminal_before);
  // Without a pipe, there are no descriptors left, sizes that change go unnoticed.
  if (::pipe2(events.data(), O_CLOEXEC | O_NONBLOCK) != 0) events = {-1, -1};
  marks = marks_pastes ? 1 : 0;
  for (const int signal : kLeaving) set_handler(signal, leave);
  std::signal(SIGCONT, go_on);
  std::signal(SIGWINCH, note_size);
  begin_marks();
}

TerminalModes::~TerminalModes() {
  show_keys(true);
  end_marks();
  for (const int signal : kLeaving) set_handler(signal, SIG_DFL);
  std::signal(SIGCONT, SIG_DFL);
  std::signal(SIGWINCH, SIG_DFL);
  for (int& end : events) {
    ::close(end);
    end = -1;
  }
}

void TerminalModes::show_keys(bool shown) {
  termios now = {};
  if (!is_ours() || tcgetattr(STDIN_FILENO, &now) != 0) return;
  const tcflag_t echo = terminal_before.c_lflag & ECHO;
  now.c_lflag = (now.c_lflag & ~tcflag_t{ECHO}) | (shown ? echo : 0);
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
}

TerminalModes::Event TerminalModes::wait() {
  std::array<pollfd, 2> sources = {{{.fd = events[0], .events = POLLIN, .revents = 0},
                                    {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}}};
  while (::poll(sources.data(), sources.size(), -1) < 0) {
    if (errno != EINTR || InterruptGuard::interrupted()) return Event::kInterrupted;
  }
  std::array<char, 64> kinds;
  const ssize_t count = sources[0].revents == 0 ? 0 : ::read(events[0], kinds.data(), kinds.size());
  if (count <= 0) return Event::kKey;
  const std::string_view all(kinds.data(), static_cast<size_t>(count));
  return all.find(kContinuedByte) == all.npos ? Event::kResized : Event::kContinued;
}

}  // namespace nanovllm::cli
