// A temporary folder, for tests and fuzzers.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace nanovllm::testing {

// A folder that is gone when the object is.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "nanovllm-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file of that name and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::remove(path);  // ext4 waits for the disk where a file is overwritten
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

}  // namespace nanovllm::testing
