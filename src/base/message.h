// Messages to people, on stderr, and what they are made of.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace nanovllm {

// Takes messages in place of stderr, from any thread.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  virtual void write(std::string_view text) = 0;
  // Returns when all is written, or soon where nothing can be.
  virtual void flush() = 0;
};
// Null = stderr. Whoever sets it never takes it back.
inline std::atomic<MessageSink*> message_sink = nullptr;

// Prints what can be printed: where stderr is closed or full, work goes on without its messages.
template <typename... Args>
void print_message(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  if (MessageSink* sink = message_sink) {
    sink->write(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
}

// "1 byte", "2 bytes".
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace nanovllm
