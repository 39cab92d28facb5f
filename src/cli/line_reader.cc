#include "cli/line_reader.h"

#include <editline/readline.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

#include "cli/terminal.h"

namespace nanovllm::cli {

LineReader::LineReader(std::string prompt)
    : prompt_(std::move(prompt)), interactive_(is_terminal(stdin) && is_terminal(stdout)) {
  if (interactive_) std::setlocale(LC_CTYPE, "");  // editing by characters, not bytes
}

std::optional<std::string> LineReader::read() {
  if (!interactive_) {
    std::string line;
    if (std::getline(std::cin, line)) return line;
    return {};
  }
  const std::unique_ptr<char, void (*)(void*)> line(readline(prompt_.c_str()), std::free);
  if (line == nullptr) {
    std::puts("");
    return {};
  }
  if (*line != '\0') add_history(line.get());
  return std::string(line.get());
}

}  // namespace nanovllm::cli
