// The peak of a GPU by its figures, never by a clock: what is planned with it must be the same with
// each run.
#pragma once

#include "backend/cuda/attention/attention_plan.h"
#include "base/dtype.h"

namespace nanovllm::cuda {

// Operations of dense products with float32 sums that a multiprocessor begins with each tick, by
// NVIDIA's data sheets: of bfloat16 on its tensor cores, of float32 in its lanes. Of bfloat16's
// with several kinds of GPUs the slower, GeForce's.
constexpr int flops_per_tick(int major, int minor, DType dtype) {
  if (dtype != DType::kBFloat16) return major == 8 && minor == 0 ? 128 : 256;
  switch (major) {
    case 8:
      return minor == 0 ? 2048 : 512;  // A100; A10, L40S and RTX 30 and 40
    case 9:
      return 4096;  // H100, H200
    case 10:
      return 8192;  // B200
    default:
      return 512;  // RTX 50
  }
}

// The general kernel of attention uses no tensor cores and waits for each key of each query head:
// on an H100 it reaches 5 to 9, where others reach half of the peak.
inline constexpr int kGeneralAttentionFlopsPerTick = 12;

// The same of prompts' attention by its kernel.
constexpr int attention_flops_per_tick(int major, int minor, AttentionPath path) {
  if (path == AttentionPath::kGeneral) return kGeneralAttentionFlopsPerTick;
  const int peak = flops_per_tick(major, minor, DType::kBFloat16);
  // Hopper's tensor cores give mma about a third of what they give wgmma.
  return major == 9 && path == AttentionPath::kMma ? peak / 3 : peak;
}

// Memory gives data twice a tick.
constexpr double peak_memory_bytes(double clock_hz, int bus_bits) {
  return 2 * clock_hz * bus_bits / 8;
}

}  // namespace nanovllm::cuda
