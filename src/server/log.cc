#include "server/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "base/signals.h"

namespace nanovllm::server {

namespace {

constexpr size_t kMaxPending = size_t{256} << 10;  // bytes that wait to be written, or one line
constexpr std::chrono::seconds kLogFlushTime{1};

// Waits for a reader. False where there will be none.
bool write_whole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(descriptor, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {  // whoever shares the pipe made it so
      pollfd one = {.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&one, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

LogWriter& writer_to_stderr() {
  // Never destroyed: threads print to the end.
  static LogWriter* const writer = std::make_unique<LogWriter>(STDERR_FILENO).release();
  return *writer;
}

}  // namespace

struct LogWriter::State {
  explicit State(int to) : descriptor(to) {}
  void run();
  bool is_done() const { return lines.empty() && num_dropped == 0 && !is_writing; }

  const int descriptor;
  std::mutex mutex = {};  // guards what follows
  std::condition_variable changed = {};
  std::vector<std::string> lines = {};
  size_t num_bytes = 0;     // of the lines
  int64_t num_dropped = 0;  // behind them
  bool is_writing = false;
  bool is_closed = false;
};

void LogWriter::State::run() {
  int64_t num_lost = 0;
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return is_closed || !is_done(); });
    if (is_closed) return;
    const std::vector<std::string> batch = std::exchange(lines, {});
    num_lost += std::exchange(num_dropped, 0);
    num_bytes = 0;
    is_writing = true;
    lock.unlock();
    for (const std::string& line : batch) {
      if (!write_whole(descriptor, line)) ++num_lost;
    }
    if (num_lost > 0 &&
        write_whole(descriptor,
                    fmt::format("{} nanovllm: {} of the log {} dropped, because "
                                "nobody read it\n",
                                utc_time(std::chrono::system_clock::now()),
                                counted(num_lost, "line"), num_lost == 1 ? "was" : "were"))) {
      num_lost = 0;
    }
    lock.lock();
    is_writing = false;
    changed.notify_all();
  }
}

LogWriter::LogWriter(int descriptor) : state_(std::make_shared<State>(descriptor)) {
  const SignalsBlocked in_thread;
  std::thread([state = state_] { state->run(); }).detach();
}

LogWriter::~LogWriter() {
  LogWriter::flush();
  const std::lock_guard lock(state_->mutex);
  state_->is_closed = true;
  state_->changed.notify_all();
}

// A line of any length is taken where none waits. Once some are dropped, all are until there is
// room for many: what is missing is in one place.
void LogWriter::write(std::string_view text) {
  std::string stamped;
  if (stamps_ && text.starts_with("nanovllm: ")) {
    stamped = fmt::format("{} {}", utc_time(std::chrono::system_clock::now()), text);
    text = stamped;
  }
  const std::lock_guard lock(state_->mutex);
  const bool has_room = state_->num_bytes == 0 || state_->num_bytes + text.size() <= kMaxPending;
  if (state_->num_dropped > 0 || !has_room) {
    state_->num_dropped += std::max<int64_t>(std::ranges::count(text, '\n'), 1);
  } else {
    state_->lines.emplace_back(text);
    state_->num_bytes += text.size();
  }
  state_->changed.notify_all();
}

void LogWriter::flush() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, kLogFlushTime, [this] { return state_->is_done(); });
}

void print_without_waiting() {
  LogWriter* const writer = &writer_to_stderr();
  if (message_sink.exchange(writer) == nullptr) std::atexit([] { writer_to_stderr().flush(); });
}

void begin_log() { writer_to_stderr().stamp(); }

}  // namespace nanovllm::server
