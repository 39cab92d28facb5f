// The header of a safetensors file: 8 bytes of little-endian length, JSON, then the tensors' bytes.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace nanovllm {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kBFloat16;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset of the first byte in the file
  uint64_t end = 0;
};

// Entries in file order. Checks everything the format promises: tensors fill the file without gap
// or overlap, and each has as many bytes as its dtype and shape need. `path` is for messages.
// Throws Error: kCorruptData, kUnsupported (a dtype other than BF16, F16, F32).
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> file,
                                                       const std::string& path);

}  // namespace nanovllm
