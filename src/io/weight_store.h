// The tensors of a checkpoint by name, mapped from disk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/matrix_decoder.h"
#include "base/matrix_source.h"
#include "io/gguf_names.h"
#include "io/quantization_config.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {

// What it points to lives as long as the WeightStore.
struct StoredTensor {
  const void* data = nullptr;  // in the mapped file
  DType dtype = DType::kBFloat16;
  std::vector<int64_t> shape;
  int64_t bytes = 0;                       // in the file
  const MatrixDecoder* decoder = nullptr;  // of a matrix that is not plain numbers of `dtype`
  int64_t interleaved_head = 0;            // see HostMatrix
  const MatrixSource* source = nullptr;    // never null
};

// Quantised matrices that products can't compute with in their codes.
struct MatricesWithoutLayout {
  std::string because;  // "groups of columns are shuffled (g_idx)"
  int64_t num_matrices = 0;
};

// The tensors of a model: of model.safetensors, of the shards of model.safetensors.index.json, or
// of a GGUF file, under Hugging Face's names in any case. A quantised matrix is one tensor
// NAME.weight, whatever it is made of. Thread-safe after construction.
class WeightStore {
 public:
  // Maps the files and checks every header: lengths, overlaps, dtypes, offsets inside the file.
  // Throws Error: kNotFound, kCorruptData, kUnsupported (a format that can't be read), kIo.
  // `quantization` is that of a folder's config, if it has one; `layout` that of a GGUF file.
  explicit WeightStore(const std::string& model,
                       const std::optional<QuantizationConfig>& quantization = {},
                       const GgufLayout& layout = {});
  ~WeightStore();

  bool contains(std::string_view name) const;
  // Throws Error(kNotFound) naming the tensor and the file or folder looked in, Error(kCorruptData)
  // when the shape is another than expected or the file has been cut short. Remembers that the
  // tensor was asked for.
  StoredTensor get(std::string_view name, const std::vector<int64_t>& expected_shape) const;
  // Names never asked for: surplus tensors.
  std::vector<std::string> unused() const;
  // Of a multimodal checkpoint, the parts besides the text model, which alone is here: by the name
  // that a text model gives its tensors.
  std::vector<std::string> ignored_parts() const;
  int64_t total_bytes() const;
  // Those with the most bytes first; of all tensors, or of those that were asked for.
  std::vector<WeightFormat> formats() const;
  std::vector<WeightFormat> formats_in_use() const;
  // The quantised one with the most bytes; empty = all tensors are plain numbers.
  std::string quantised_format() const;
  // By reason.
  std::vector<MatricesWithoutLayout> without_layout() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
