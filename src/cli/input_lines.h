// The lines of a file, a pipe or standard input, without waiting for those that are not there yet.
#pragma once

#include <string>

namespace nanovllm::cli {

class InputLines {
 public:
  enum class Next {
    kLine,
    kNotYet,  // whoever writes may still write more
    kEnd,
  };

  // "-" is standard input. Throws Error(kIo) when the file can't be opened.
  explicit InputLines(std::string path);
  ~InputLines();
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;

  // Takes the next line, without its newline. Where there is none yet it waits for a moment if
  // `wait`, not so long that Ctrl-C would go unnoticed. Throws Error(kIo) when reading fails.
  Next next(std::string& line, bool wait);

 private:
  bool is_readable(bool wait) const;
  void fill();
  [[noreturn]] void fail() const;

  const std::string path_;
  int file_ = -1;
  std::string buffer_;   // what was read and not taken
  size_t begin_ = 0;     // of the next line
  size_t searched_ = 0;  // there is no newline from begin_ to here
  bool at_end_ = false;
};

}  // namespace nanovllm::cli
