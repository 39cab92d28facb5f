// Lines from standard input, with editing and history on a terminal.
#pragma once

#include <optional>
#include <string>

namespace nanovllm::cli {

class LineReader {
 public:
  explicit LineReader(std::string prompt);
  bool interactive() const { return interactive_; }
  std::optional<std::string> read();  // nothing at the end of input

 private:
  std::string prompt_;
  bool interactive_;
};

}  // namespace nanovllm::cli
