#include "cli/result_sink.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "cli/terminal.h"

namespace nanovllm::cli {

ResultSink::ResultSink(const std::string& path) : path_(path == "-" ? "" : path) {
  if (path_.empty() || ::access(path.c_str(), W_OK) == 0) return;
  if (errno != ENOENT) fail();
  const std::string folder = std::filesystem::path(path).parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) fail();
}

ResultSink::~ResultSink() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

bool ResultSink::has_content() const {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return !path_.empty() && fs::is_regular_file(path_, ignored) && fs::file_size(path_, ignored) > 0;
}

void ResultSink::open(bool behind) {
  if (path_.empty()) return;
  file_ = std::fopen(path_.c_str(), behind ? "a" : "w");
  if (file_ == nullptr) fail();
}

void ResultSink::write(const std::string& text) {
  const InterruptGuard::Writing whole;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail();
  if (std::fflush(file_) != 0) fail();
}

void ResultSink::fail() const {
  end_if_nobody_reads();
  throw_error(ErrorCode::kIo, "cannot write results to {}: {}",
              path_.empty() ? "standard output" : path_, std::strerror(errno));
}

}  // namespace nanovllm::cli
