#include "base/process_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <utility>

namespace nanovllm {

std::string memory_limits() {
  std::string text;
  for (const auto& [resource, flag] : {std::pair{RLIMIT_AS, "-v"}, std::pair{RLIMIT_DATA, "-d"}}) {
    rlimit limit = {};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    text += fmt::format(" (ulimit {} {})", flag, limit.rlim_cur / 1024);
  }
  return text;
}

}  // namespace nanovllm
