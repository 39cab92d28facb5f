// Messages to people, on stderr.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace nanovllm {

// Prints what can be printed: where stderr is closed or full, work goes on without its messages.
template <typename... Args>
void print_message(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace nanovllm
