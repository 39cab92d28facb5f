// Lines of a terminal with editing and history, or plain lines of a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace nanovllm::cli {

class LineReader {
 public:
  explicit LineReader(std::string prompt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const { return editor_ != nullptr; }  // input and output are terminals
  // Nothing at the end of the input. On a terminal, Ctrl-C drops what was typed. Throws Error: kIo,
  // and kCorruptData for a line of a pipe that is longer than any message.
  std::optional<std::string> read();

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null for a pipe
};

}  // namespace nanovllm::cli
