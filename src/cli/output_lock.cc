#include "cli/output_lock.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "io/file_lock.h"

namespace nanovllm::cli {

namespace fs = std::filesystem;

OutputLock::OutputLock(const std::string& path) {
  struct stat before = {};
  if (path.empty() || path == "-") return;
  const bool is_there = ::stat(path.c_str(), &before) == 0;
  if (is_there && !S_ISREG(before.st_mode)) return;
  FileLock lock = lock_file(path);
  if (lock.error == EWOULDBLOCK) {
    throw_error(ErrorCode::kUnavailable,
                "{}: another run writes its results there; wait for its end, or name another file",
                path);
  }
  if (!lock.file) {
    throw_error(ErrorCode::kIo, "cannot write results to {}: {}", path, std::strerror(lock.error));
  }
  file_ = std::move(lock.file);
  std::error_code ignored;
  if (!is_there) made_ = fs::canonical(path, ignored);  // a link that led nowhere stays
}

OutputLock::~OutputLock() {
  std::error_code ignored;
  if (file_ && !made_.empty() && fs::is_empty(made_, ignored)) fs::remove(made_, ignored);
}

}  // namespace nanovllm::cli
