// The header of a safetensors file: 8 bytes of little-endian length, JSON, then the tensors' bytes.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace nanovllm {

struct SafetensorsEntry {
  std::string name;
  std::string type;            // as the file has it: "BF16", "F8_E4M3", "I32", ...
  std::optional<DType> dtype;  // of BF16, F16 and F32, which can be computed with as they are
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset of the first byte in the file
  uint64_t end = 0;
};

// Entries in file order. Checks everything the format promises: tensors fill the file without gap
// or overlap, and each has as many bytes as its dtype and shape need. `path` is for messages.
// Throws Error: kCorruptData, kUnsupported (a dtype of unknown size).
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> file,
                                                       const std::string& path);

// What model.safetensors.index.json says: of each tensor's name the file's, which lies beside the
// index. Throws Error(kCorruptData).
std::map<std::string, std::string> read_safetensors_index(const std::string& path);

// What is said of a tensor that is not BF16, F16 or F32 and no part of a quantised matrix. `hint`
// ends the sentence.
[[noreturn]] void refuse_dtype(const std::string& path, std::string_view tensor,
                               std::string_view type, std::string_view hint = "");

}  // namespace nanovllm
