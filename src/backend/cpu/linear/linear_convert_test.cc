// The vector conversions against the definitions in base/dtype.h, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

struct Conversions {
  const char* name;
  void (*bf16_to_f32)(const void*, float*, int64_t);
  void (*f16_to_f32)(const void*, float*, int64_t);
  void (*f32_to_bf16)(const void*, uint16_t*, int64_t);
};

std::vector<Conversions> available() {
  std::vector<Conversions> all = {
      {"portable", bf16_to_f32_portable, f16_to_f32_portable, f32_to_bf16_portable}};
#if defined(__x86_64__)
  if (detected_isa() >= Isa::kAvx2) {
    all.push_back({"avx2", bf16_to_f32_avx2, f16_to_f32_avx2, f32_to_bf16_avx2});
  }
#endif
  return all;
}

class LinearConvert : public ::testing::TestWithParam<Conversions> {};

TEST_P(LinearConvert, EverySixteenBitValueWidensExactly) {
  std::vector<uint16_t> in(65536);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(in.size()), f16(in.size());
  GetParam().bf16_to_f32(in.data(), bf16.data(), static_cast<int64_t>(in.size()));
  GetParam().f16_to_f32(in.data(), f16.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), i << 16);
    const float half = half_to_float(in[i]);
    if (std::isnan(half)) {  // hardware makes signalling NaNs quiet
      ASSERT_TRUE(std::isnan(f16[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(f16[i]), std::bit_cast<uint32_t>(half)) << i;
    }
  }
}

TEST_P(LinearConvert, RoundingToBfloat16IsToNearestEven) {
  std::mt19937 rng(1);
  std::vector<float> in = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-42f, 3.4e38f};
  for (const uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u, 0x7f7fffffu,
                              0x7f800001u, 0xffffffffu, 0x00000001u}) {
    in.push_back(std::bit_cast<float>(bits));
  }
  for (int i = 0; i < 100000; ++i) in.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng())));
  std::vector<uint16_t> out(in.size());
  GetParam().f32_to_bf16(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], to_bfloat16(in[i]).bits) << i;
}

TEST_P(LinearConvert, WritesExactlyAsManyAsAskedFor) {
  for (int64_t n = 0; n <= 20; ++n) {
    std::vector<uint16_t> halves(32, 0x3c00), rounded(32, 0xabcd);
    std::vector<float> ones(32, 1.0f), widened(32, -7.0f), from_bf16(32, -7.0f);
    GetParam().f16_to_f32(halves.data(), widened.data(), n);
    GetParam().bf16_to_f32(halves.data(), from_bf16.data(), n);
    GetParam().f32_to_bf16(ones.data(), rounded.data(), n);
    for (int64_t i = 0; i < 32; ++i) {
      ASSERT_EQ(widened[i], i < n ? 1.0f : -7.0f);
      ASSERT_EQ(from_bf16[i], i < n ? to_float(BFloat16{0x3c00}) : -7.0f);
      ASSERT_EQ(rounded[i], i < n ? 0x3f80 : 0xabcd);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LinearConvert, ::testing::ValuesIn(available()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nanovllm
