// Locks of files, which keep other processes out as long as they want to be kept out.
#pragma once

#include <string>

#include "io/stdio_file.h"

namespace nanovllm {

struct FileLock {
  File file;      // open, to be written behind its end, and locked until it is closed; or null
  int error = 0;  // errno: why it is null, EWOULDBLOCK where somebody else holds the lock
};

// An exclusive lock (flock) of the file that has this name then; it is made where there is none,
// and what it holds stays. A file system without locks, as some of networks are, grants it to all.
FileLock lock_file(const std::string& path);

}  // namespace nanovllm
