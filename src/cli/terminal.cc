#include "cli/terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/message.h"
#include "cli/terminal_text.h"

namespace nanovllm::cli {
namespace {

bool pipes_end_the_program = true;  // unless whoever started it had it ignore SIGPIPE
std::atomic<int> interruptions = 0;
std::atomic<bool> is_writing = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "signal handlers may touch them");

// Of the work, to end by itself. Long for most steps, and short for who pressed the keys.
constexpr std::chrono::microseconds kPatience{500'000};

// Sends SIGALRM, or never where it is 0. Signal handlers may call it.
void send_alarm_in(std::chrono::microseconds time) {
  const itimerval once = {.it_interval = {}, .it_value = {0, time.count()}};
  setitimer(ITIMER_REAL, &once, nullptr);
}

void count_and_end_at_the_second(int) {
  if (interruptions.fetch_add(1) > 0) _exit(kExitInterrupted);
}

void count_and_end_soon(int signal) {
  count_and_end_at_the_second(signal);
  send_alarm_in(kPatience);
}

void end_program(int) {
  if (is_writing) {
    send_alarm_in(kPatience);
    return;
  }
  constexpr std::string_view kClearLine = "\r\x1b[K";  // of a bar
  constexpr std::string_view kMessage =
      "nanovllm: interrupted; what was written is whole, and what was running is lost\n";
  if (isatty(STDERR_FILENO) == 1) {
    static_cast<void>(!::write(STDERR_FILENO, kClearLine.data(), kClearLine.size()));
  }
  static_cast<void>(!::write(STDERR_FILENO, kMessage.data(), kMessage.size()));
  _exit(kExitInterrupted);
}

void count(int) { interruptions = 1; }

bool use_color(std::FILE* stream) {
  return is_terminal(stream) && std::getenv("NO_COLOR") == nullptr;
}

bool is_pipe(std::FILE* stream) {
  struct stat status = {};
  return fstat(fileno(stream), &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string styled(std::FILE* stream, std::string_view text, int code) {
  return use_color(stream) ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

}  // namespace

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

int columns(std::FILE* terminal) {
  winsize size = {};
  const bool known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (nl_langinfo(CODESET) != std::string_view("UTF-8")) std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::string bold(std::FILE* stream, std::string_view text) { return styled(stream, text, 1); }
std::string dim(std::FILE* stream, std::string_view text) { return styled(stream, text, 2); }
std::string colored(std::FILE* stream, std::string_view text, int color) {
  return styled(stream, text, 30 + color);
}

std::string with_bar(const std::string& label, double share, const std::string& rest) {
  constexpr int kMaxWidth = 20;  // characters of the bar
  const std::string line = fmt::format("{} {}", label, rest);
  // What wraps can't be redrawn in place; the cursor needs room too.
  const int room = columns(stderr) - 1;
  const int width = std::min(room - static_cast<int>(line.size()) - 1, kMaxWidth);
  if (share < 0 || width <= 0) return line.substr(0, static_cast<size_t>(std::max(room, 1)));
  // A share is a sum of many numbers, and what is done shows whole.
  const int filled = static_cast<int>(std::min(share, 1.0) * width + 1e-6);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
  return fmt::format("{} {} {}", label, bar, rest);
}

std::string shown_time(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

void print_error(std::string_view message) {
  print_message("{} {}\n", colored(stderr, "nanovllm:", 1), shown_on(stderr, message));
}

void let_writes_fail() {
  pipes_end_the_program = std::signal(SIGPIPE, SIG_IGN) != SIG_IGN;
  std::signal(SIGXFSZ, SIG_IGN);
}

void end_if_nobody_reads() {
  if (errno != EPIPE || !pipes_end_the_program) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

void flush_standard_output() {
  if (std::fflush(stdout) == 0) return;
  end_if_nobody_reads();
  throw_error(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(errno));
}

void check_standard_input() {
  if (std::ferror(stdin) == 0) return;
  throw_error(ErrorCode::kIo, "cannot read standard input: {}", std::strerror(errno));
}

InterruptGuard::InterruptGuard(Again again) {
  reset();
  if (again == Again::kMeansNothing) {
    install(SIGINT, count);
    return;
  }
  const bool ends_soon = again == Again::kIsNotNeeded;
  if (ends_soon) std::signal(SIGALRM, end_program);
  for (const int signal : {SIGINT, SIGTERM}) {
    install(signal, ends_soon ? count_and_end_soon : count_and_end_at_the_second);
  }
}

InterruptGuard::~InterruptGuard() {
  send_alarm_in(std::chrono::microseconds(0));
  install(SIGINT, SIG_DFL);
  install(SIGTERM, SIG_DFL);
}

void InterruptGuard::install(int signal, Handler handler) {
  if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
}

bool InterruptGuard::interrupted() {
  if (interruptions.load() == 0) return false;
  send_alarm_in(std::chrono::microseconds(0));  // who asks comes to an end
  return true;
}

void InterruptGuard::reset() { interruptions = 0; }

InterruptGuard::Writing::Writing() { is_writing = true; }
InterruptGuard::Writing::~Writing() { is_writing = false; }

Progress::Progress(std::string label, int64_t total, bool enabled, Elsewhere elsewhere)
    : label_(std::move(label)),
      total_(total),
      on_terminal_(is_terminal(stderr)),
      enabled_(enabled && (on_terminal_ || elsewhere == Elsewhere::kLines)),
      in_place_(on_terminal_) {}

Progress::~Progress() { clear(); }

void Progress::Speed::add(int num_tokens_of_step, double seconds_of_step) {
  if (num_tokens_of_step == 0 || seconds_of_step <= 0) return;
  shown = num_tokens_of_step / seconds_of_step;
  num_tokens += num_tokens_of_step;
  seconds += seconds_of_step;
}

void Progress::Speed::show_average() {
  if (seconds > 0) shown = static_cast<double>(num_tokens) / seconds;
}

void Progress::update(int64_t done, double share, const StepStats& step) {
  done_ = done;
  share_ = share;
  prefill_speed_.add(step.num_prefill_tokens, step.seconds);
  decode_speed_.add(step.num_kept_decode_tokens(), step.seconds);
  const auto pause = std::chrono::milliseconds(in_place_ ? 100 : on_terminal_ ? 5000 : 30'000);
  if (!enabled_ || Clock::now() - last_draw_ < pause) return;
  draw("");
}

void Progress::clear() {
  if (drawn_ && in_place_) print_message("\r\x1b[K");
  drawn_ = false;
}

void Progress::clear_for(std::FILE* results) {
  clear();
  if (in_place_) in_place_ = !enabled_ || !is_pipe(results);
}

void Progress::finish(int64_t done, double share) {
  done_ = done;
  share_ = share;
  prefill_speed_.show_average();
  decode_speed_.show_average();
  if (!enabled_ || prefill_speed_.seconds + decode_speed_.seconds == 0) return;
  draw("\n");
  drawn_ = false;
}

// In one piece, so that what others write to the terminal comes before or after it.
void Progress::draw(const char* end) {
  last_draw_ = Clock::now();
  if (in_place_) {
    print_message("\r\x1b[K{}{}", text(), end);
  } else {
    print_message("{}{}\n", on_terminal_ ? "" : "nanovllm: ", text());
  }
  drawn_ = true;
}

std::string Progress::text() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const bool is_known = total_ > 0 && share_ > 0 && share_ < 1;
  const std::string left =
      is_known ? fmt::format(", {} left", shown_time(seconds / share_ - seconds)) : "";
  const std::string speeds =
      fmt::format("[{}, prefill {:.0f} tok/s, decode {:.0f} tok/s{}]", shown_time(seconds),
                  prefill_speed_.shown, decode_speed_.shown, left);
  const std::string count = total_ > 0 ? fmt::format("{}/{} {}", done_, total_, speeds)
                                       : fmt::format("{} done {}", done_, speeds);
  if (!in_place_) return fmt::format("{} {}", label_, count);
  return with_bar(label_, total_ > 0 ? share_ : -1, count);
}

}  // namespace nanovllm::cli
