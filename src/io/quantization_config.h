// In which format a Hugging Face folder has its weights: config.json's quantization_config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"

namespace nanovllm {

enum class QuantizationMethod { kCompressedTensors, kFp8, kModelOpt, kAwq, kGptq, kMxfp4 };

// How the weights of some modules are stored.
struct WeightScheme {
  int num_bits = 8;       // of a code, 4 or 8
  bool is_float = false;  // codes are FP8 (E4M3) or FP4 (E2M1) instead of integers
  bool symmetric = true;  // no zero points
  // How many elements share a scale; 0 = all rows, all columns.
  int64_t block_rows = 1;
  int64_t block_cols = 0;
};

struct QuantizationConfig {
  QuantizationMethod method = QuantizationMethod::kCompressedTensors;
  std::string_view name = {};          // of the method, as config.json has it
  std::string where;                   // the file and the field, for messages
  bool zeros_are_less_by_one = false;  // of GPTQ's first version
  // Of other methods than compressed-tensors: of all modules that are quantised, which those are is
  // left to the tensors that are there. Nothing where only the KV cache is quantised.
  std::optional<WeightScheme> scheme;
  // Of compressed-tensors: names of modules, expressions ("re:...") and classes ("Linear"), the
  // most specific ones first; and those that are not quantised.
  std::vector<std::pair<std::string, WeightScheme>> targets;
  std::vector<std::string> ignored;

  // Of a module such as "model.layers.0.mlp.up_proj". Throws Error(kCorruptData) for an expression
  // that does not compile or takes too long.
  std::optional<WeightScheme> scheme_of(std::string_view module) const;
};

// Whether a checkpoint's method may be called so; "gguf" is that of GGUF files.
bool is_quantization_method(std::string_view name);

// Reads config.json's quantization_config or compression_config, or ModelOpt's hf_quant_config.json
// where there is none; nothing where there is neither. Throws Error: kUnsupported naming a format
// that can't be loaded, kCorruptData.
std::optional<QuantizationConfig> load_quantization_config(const JsonFields& config,
                                                           const std::string& model_dir);

}  // namespace nanovllm
