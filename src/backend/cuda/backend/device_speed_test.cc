#include "backend/cuda/backend/device_speed.h"

#include <gtest/gtest.h>

namespace nanovllm::cuda {
namespace {

double peak_flops(int major, int minor, int multiprocessors, double clock_hz,
                  DType dtype = DType::kBFloat16) {
  return clock_hz * multiprocessors * flops_per_tick(major, minor, dtype);
}

// The figures that devices tell of themselves, and the peaks that their data sheets promise; their
// clocks are a little above those that the sheets count with.
TEST(DeviceSpeed, IsThatOfTheDataSheets) {
  EXPECT_NEAR(peak_flops(9, 0, 132, 1.980e9), 989e12, 100e12);  // H100 SXM
  EXPECT_NEAR(peak_memory_bytes(2.619e9, 5120), 3.35e12, 0.05e12);
  EXPECT_NEAR(peak_memory_bytes(3.201e9, 6144), 4.8e12, 0.2e12);  // H200
  EXPECT_NEAR(peak_flops(8, 0, 108, 1.410e9), 312e12, 5e12);      // A100
  EXPECT_NEAR(peak_flops(8, 9, 128, 2.520e9), 165e12, 5e12);      // RTX 4090
  EXPECT_NEAR(peak_flops(12, 0, 170, 2.407e9), 209e12, 5e12);     // RTX 5090
  EXPECT_NEAR(peak_flops(10, 0, 148, 1.965e9), 2250e12, 150e12);  // B200
  EXPECT_NEAR(peak_flops(9, 0, 132, 1.980e9, DType::kFloat32), 67e12, 1e12);
  EXPECT_NEAR(peak_flops(8, 0, 108, 1.410e9, DType::kFloat32), 19.5e12, 0.1e12);
  EXPECT_NEAR(peak_flops(8, 9, 128, 2.520e9, DType::kFloat32), 82.6e12, 0.1e12);
}

// By the kernel that computes it: wgmma's, mma's, or the general one.
TEST(DeviceSpeed, OfAttentionIsThatOfItsKernel) {
  EXPECT_EQ(attention_flops_per_tick(9, 0, AttentionPath::kWgmma), 4096);
  EXPECT_EQ(attention_flops_per_tick(9, 0, AttentionPath::kMma), 4096 / 3);
  EXPECT_EQ(attention_flops_per_tick(8, 0, AttentionPath::kMma), 2048);
  EXPECT_LT(attention_flops_per_tick(9, 0, AttentionPath::kGeneral), 4096 / 100);
}

}  // namespace
}  // namespace nanovllm::cuda
