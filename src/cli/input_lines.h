// The lines of a file, a pipe or standard input, without waiting for those that are not there yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace nanovllm::cli {

class InputLines {
 public:
  enum class Next {
    kLine,
    kTooLong,  // a line of more than kMaxLineBytes, which is lost
    kNotYet,   // whoever writes may still write more
    kEnd,
  };

  // More than any request needs, and less than memory has.
  static constexpr size_t kMaxLineBytes = kMaxTextBytes;

  // Lines of nothing else are no requests.
  static constexpr std::string_view kBlanks = " \t\r\n";

  // "-" is standard input. Throws Error(kIo) when the file can't be opened or is a folder.
  explicit InputLines(std::string path);
  ~InputLines();
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;

  // Takes the next line, without its newline and the file's byte order mark. Where there is none
  // yet it waits for a moment if `wait`, not so long that Ctrl-C would go unnoticed. Throws
  // Error(kIo) when reading fails.
  Next next(std::string& line, bool wait);

  // How many lines with more than blanks next() will find in a file; nothing for what is no file or
  // can't be read. To be called before next(), and changes nothing.
  std::optional<int64_t> count() const;

 private:
  bool is_readable(bool wait) const;
  void fill();
  bool drop_what_is_too_long();
  Next whole(std::string& line);  // what a line is whose end has been found
  [[noreturn]] void fail() const;

  const std::string path_;
  int file_ = -1;
  std::string buffer_;     // what was read and not taken
  size_t begin_ = 0;       // of the next line
  size_t searched_ = 0;    // there is no newline from begin_ to here
  bool is_first_ = true;   // the next line
  bool too_long_ = false;  // the next line, whose beginning was dropped
  bool at_end_ = false;
};

}  // namespace nanovllm::cli
