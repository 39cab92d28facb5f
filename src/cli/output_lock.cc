#include "cli/output_lock.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace nanovllm::cli {

OutputLock::OutputLock(const std::string& path) {
  struct stat now = {};
  if (path.empty() || path == "-") return;
  if (::stat(path.c_str(), &now) == 0 && !S_ISREG(now.st_mode)) return;
  while (true) {
    file_.reset(std::fopen(path.c_str(), "ae"));
    if (!file_) {
      throw_error(ErrorCode::kIo, "cannot write results to {}: {}", path, std::strerror(errno));
    }
    const int file = ::fileno(file_.get());
    if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw_error(
          ErrorCode::kUnavailable,
          "{}: another run writes its results there; wait for its end, or name another file", path);
    }
    // Who held it before may have put another file in its place.
    struct stat own = {};
    if (::fstat(file, &own) == 0 && ::stat(path.c_str(), &now) == 0 && own.st_ino == now.st_ino) {
      return;
    }
  }
}

}  // namespace nanovllm::cli
