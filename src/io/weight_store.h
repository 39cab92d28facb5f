// The tensors of a checkpoint by name, mapped from disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace nanovllm {

struct StoredTensor {
  const void* data = nullptr;  // in the mapped file; lives as long as the WeightStore
  DType dtype = DType::kBFloat16;
  std::vector<int64_t> shape;
};

// model.safetensors, or the shards of model.safetensors.index.json. Thread-safe after construction.
class WeightStore {
 public:
  // Maps the files and checks every header: lengths, overlaps, dtypes, offsets inside the file.
  // Throws Error: kNotFound, kCorruptData, kUnsupported (a dtype other than BF16, F16, F32), kIo.
  explicit WeightStore(const std::string& model_dir);
  ~WeightStore();

  bool contains(std::string_view name) const;
  // Throws Error(kNotFound) naming the tensor and the file or folder looked in, Error(kCorruptData)
  // when the shape is another than expected or the file has been cut short. Remembers that the
  // tensor was asked for.
  StoredTensor get(std::string_view name, const std::vector<int64_t>& expected_shape) const;
  // To be called before a tensor is read that was asked for a while ago. Throws
  // Error(kCorruptData) when its file has been cut short meanwhile.
  void check_size(std::string_view name) const;
  // A tensor has been copied and is not going to be read again soon: its pages stop counting as
  // memory of this process. It stays valid.
  void release(std::string_view name) const;
  // Names never asked for: surplus tensors.
  std::vector<std::string> unused() const;
  int64_t total_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
