// Lines of the server's log, on stderr, with the time in front; nobody waits until they are
// written.
#pragma once

#include <fmt/chrono.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/message.h"

namespace nanovllm::server {

// UTC as ISO 8601 has it: 2026-11-24T18:07:05.042Z.
inline std::string utc_time(std::chrono::system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)), since.count() % 1000);
}

template <typename... Args>
void print_log(fmt::format_string<Args...> format, Args&&... args) {
  print_message("{} nanovllm: {}\n", utc_time(std::chrono::system_clock::now()),
                fmt::format(format, std::forward<Args>(args)...));
}

// Writes to a descriptor on a thread of its own. Where nobody reads there, a pipe's other end say,
// lines are dropped and counted, and the count is told when somebody does again.
class LogWriter final : public MessageSink {
 public:
  explicit LogWriter(int descriptor);
  ~LogWriter() override;  // flushes
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  void write(std::string_view text) override;  // a line or several
  void flush() override;
  // From now on what begins with "nanovllm: ", from whoever knows of no log, gets the time in
  // front.
  void stamp() { stamps_ = true; }

 private:
  struct State;
  std::atomic<bool> stamps_ = false;
  const std::shared_ptr<State> state_;  // its thread may wait for a reader longer than this lives
};

// From now on the messages of this process, whoever prints them, go to stderr by a LogWriter; and
// from the next call on each is a line of a log, with its time.
void print_without_waiting();
void begin_log();

}  // namespace nanovllm::server
