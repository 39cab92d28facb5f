// Files of the C library that are closed by themselves.
#pragma once

#include <cstdio>
#include <memory>

namespace nanovllm {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace nanovllm
