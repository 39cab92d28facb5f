// The peak of a GPU by its figures, never by a clock: what is planned with it must be the same with
// each run.
#pragma once

#include <cstdint>

namespace nanovllm::cuda {

// Operations of dense bfloat16 products with float32 sums that a multiprocessor begins with each
// tick, by NVIDIA's data sheets. Of those with several kinds of GPUs the slower, GeForce's.
constexpr int flops_per_tick(int major, int minor) {
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

constexpr double peak_flops(int major, int minor, int multiprocessors, double clock_hz) {
  return clock_hz * multiprocessors * flops_per_tick(major, minor);
}

// Memory gives data twice a tick.
constexpr double peak_memory_bytes(double clock_hz, int bus_bits) {
  return 2 * clock_hz * bus_bits / 8;
}

}  // namespace nanovllm::cuda
