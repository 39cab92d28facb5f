// So that no two runs write their results into one file.
#pragma once

#include <string>

#include "io/stdio_file.h"

namespace nanovllm::cli {

class OutputLock {
 public:
  // Takes the lock of the file `path`, which is made where it is not there; what it holds stays.
  // "", "-" and what is no file have none; nor have file systems without locks. Throws
  // Error(kUnavailable) where another run has it, or kIo.
  explicit OutputLock(const std::string& path);
  ~OutputLock();  // a file that was made goes where it is empty and nobody wants it
  OutputLock(OutputLock&&) = default;
  OutputLock& operator=(OutputLock&&) = default;

  void keep_file() { made_.clear(); }  // results are to come

 private:
  File file_;         // open as long as it is locked
  std::string made_;  // the file's path where it was not there before, until it is wanted
};

}  // namespace nanovllm::cli
