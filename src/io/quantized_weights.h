// Finds the quantised matrices of a Hugging Face folder, each of which is several tensors there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/matrix_decoder.h"
#include "io/quantization_config.h"

namespace nanovllm {

// A tensor as a safetensors file has it.
struct RawTensor {
  std::string path;  // of the file, for messages
  std::string type;  // "I32", "F8_E4M3", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // at any address
};
using RawTensors = std::map<std::string, RawTensor, std::less<>>;

struct QuantizedMatrix {
  std::string name;                // "model.layers.0.mlp.up_proj.weight"
  std::vector<std::string> parts;  // the tensors that it is made of
  std::string format;              // for people: "INT4", "FP8", "NVFP4", ...
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stack_size = 0;                  // of a stack, the matrices; 0 = one
  std::unique_ptr<MatrixDecoder> decoder;  // reads the tensors' data
  std::string no_layout_because;           // see CodedMatrix
};

// MXFP4 is gpt-oss's: stacks of matrices NAME that are NAME_blocks and NAME_scales.
//
// Which matrices are quantised is decided by the tensors that are there; `config` says how. Throws
// Error(kCorruptData) naming a tensor that is missing or of another type or shape than the config
// makes it, kUnsupported (E5M2).
std::vector<QuantizedMatrix> find_quantized_matrices(const RawTensors& tensors,
                                                     const QuantizationConfig& config);

// Whether a tensor that is no part of a matrix may be left unread: scales of activations and of the
// KV cache, which stay bfloat16, and the biases of zeros that packages for GPTQ add to every layer.
bool may_be_unread(std::string_view name, const RawTensor& tensor,
                   const QuantizationConfig& config);

}  // namespace nanovllm
