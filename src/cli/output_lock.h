// So that no two runs write their results into one file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace nanovllm::cli {

class OutputLock {
 public:
  // Takes the lock of the file `path`, which is made where it is not there. "", "-" and what is no
  // file have none; nor have file systems without locks. Throws Error(kUnavailable) where another
  // run has it, or kIo.
  explicit OutputLock(const std::string& path);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;  // open as long as it is locked
};

}  // namespace nanovllm::cli
