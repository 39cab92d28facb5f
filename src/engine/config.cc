#include "nanovllm/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/check.h"
#include "engine/speculative_config.h"
#include "io/quantization_config.h"
#include "io/rounded_matrix.h"

namespace nanovllm {

namespace {

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be between {} and {}, got {}.", name, low,
                high, value);
  }
}

void check_choice(const char* name, std::string_view value,
                  std::initializer_list<std::string_view> choices) {
  if (std::ranges::find(choices, value) != choices.end()) return;
  throw_error(ErrorCode::kInvalidArgument, "{} must be one of {}, got \"{}\".", name,
              fmt::join(choices, ", "), value);
}

}  // namespace

void EngineConfig::validate() const {
  // A step's tokens, a sequence's positions and a block's slots are 32-bit indices with room for
  // products of them.
  check_range("max_num_batched_tokens", max_num_batched_tokens, 1, 1 << 20);
  if (max_step_seconds != -1 && !(max_step_seconds >= 0 && max_step_seconds <= 3600)) {
    throw_error(ErrorCode::kInvalidArgument,
                "max_step_seconds must be between 0 and 3600, or -1 for what suits the device, got "
                "{}.",
                max_step_seconds);
  }
  check_range("max_num_seqs", max_num_seqs, 1, 1 << 16);
  if (max_model_len != -1) {
    check_range("max_model_len (-1 for what fits)", max_model_len, 2, 1 << 24);
  }
  if (!(gpu_memory_utilization > 0.0 && gpu_memory_utilization <= 1.0)) {
    throw_error(ErrorCode::kInvalidArgument, "gpu_memory_utilization must be in (0, 1], got {}.",
                gpu_memory_utilization);
  }
  if (kv_cache_memory && *kv_cache_memory < 1) {
    throw_error(ErrorCode::kInvalidArgument, "kv_cache_memory must be at least 1 byte, got {}.",
                *kv_cache_memory);
  }
  if (state_cache_memory && *state_cache_memory < 1) {
    throw_error(ErrorCode::kInvalidArgument, "state_cache_memory must be at least 1 byte, got {}.",
                *state_cache_memory);
  }
  if (num_kvcache_blocks != -1) {
    check_range("num_kvcache_blocks (-1 for as many as fit)", num_kvcache_blocks, 1, 1 << 24);
  }
  check_range("kvcache_block_size", kvcache_block_size, 16, 4096);
  if (kvcache_block_size % 16 != 0) {
    throw_error(ErrorCode::kInvalidArgument, "kvcache_block_size must be a multiple of 16, got {}.",
                kvcache_block_size);
  }
  check_choice("scheduling_policy", scheduling_policy, {"fcfs", "priority"});
  check_range("tensor_parallel_size", tensor_parallel_size, 1, 8);
  check_choice("device", device, {"auto", "cpu", "cuda"});
  check_range("first_gpu", first_gpu, 0, 1 << 16);
  check_choice("dtype", dtype, {"auto", "bfloat16", "float32"});
  check_choice("weight_layout", weight_layout, {"auto", "bfloat16"});
  // Whether it is the checkpoint's own method is told when that is loaded.
  const bool is_quantization = quantization.empty() || quantization == "none" ||
                               parse_rounded_format(quantization).has_value() ||
                               is_quantization_method(quantization);
  if (!is_quantization) {
    throw_error(ErrorCode::kInvalidArgument,
                "quantization must be one of int8, int4, fp8, got \"{}\"; a checkpoint that is "
                "quantised tells itself how: leave it out",
                quantization);
  }
  parse_speculative_config(speculative_config);
  check_range("num_threads (0 for as many as allowed)", num_threads, 0, 1024);
}

}  // namespace nanovllm
