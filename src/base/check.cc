#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace nanovllm {

void check_failed(const char* condition, const char* file, int line) {
  fmt::print(stderr, "nanovllm: internal error: {} does not hold ({}:{})\n", condition, file, line);
  std::abort();
}

}  // namespace nanovllm
