// Lines of the server's log, on stderr, with the time in front.
#pragma once

#include <fmt/chrono.h>

#include <chrono>
#include <string>
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

}  // namespace nanovllm::server
