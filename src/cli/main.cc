#include <cstdio>

#include "base/version.h"

int main() {
  std::printf("nanovllm %s\n", nanovllm::kVersion);
  return 0;
}
