#include "io/file_lock.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace nanovllm {

FileLock lock_file(const std::string& path) {
  while (true) {
    File file(std::fopen(path.c_str(), "ae"));
    if (!file) return {nullptr, errno};
    const int fd = ::fileno(file.get());
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {nullptr, EWOULDBLOCK};
    // Who held it before may have taken the file away, or put another one in its place.
    struct stat own = {}, now = {};
    if (::fstat(fd, &own) == 0 && ::stat(path.c_str(), &now) == 0 && own.st_dev == now.st_dev &&
        own.st_ino == now.st_ino) {
      return {std::move(file), 0};
    }
  }
}

}  // namespace nanovllm
