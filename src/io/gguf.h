// GGUF files: metadata and tensors of one model, mapped and trusted in nothing.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/gguf_metadata.h"

namespace nanovllm {

struct GgufTensor {
  std::string_view name;       // in the mapped file
  uint32_t type = 0;           // ggml's id; see ggml_formats.h
  std::vector<int64_t> shape;  // slowest dimension first, as elsewhere; the file has it reversed
  const std::byte* data = nullptr;
  size_t bytes = 0;
  size_t part = 0;  // index in parts()
};

// One model: a file, or all parts of a split one, with the metadata of the first. Immutable and
// thread-safe after construction; what it gives lives as long as it does.
class Gguf : public GgufMetadata {
 public:
  // Maps the file, or the parts beside a first one, and checks every count, length, type and
  // offset. Throws Error: kNotFound, kIo, kCorruptData (damaged, or a part that is not the first),
  // kUnsupported (version 1, big-endian, a tensor type without a decoder: named, with a remedy).
  explicit Gguf(const std::string& path);

  std::span<const MappedFile> parts() const { return parts_; }  // never empty
  std::span<const GgufTensor> tensors() const { return tensors_; }

 private:
  // Appends a file and its tensors.
  GgufMetadata read_part(const std::string& path);
  void read_other_parts(int64_t count);
  void check_names() const;

  std::vector<MappedFile> parts_;
  std::vector<GgufTensor> tensors_;
};

// The GGUF file that MODEL names: the file itself, recognised by its first four bytes whatever its
// name, or the only *.gguf (or the only first part of a split) of a folder without config.json.
// Nothing for other folders. Throws Error(kCorruptData) for a file that is not GGUF, and for a
// folder with several, listing them.
std::optional<std::string> find_gguf(const std::string& model);

// The names of a folder's *.gguf; of those of a split the first's.
std::set<std::string> list_gguf(const std::string& folder);

}  // namespace nanovllm
