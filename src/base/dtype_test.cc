#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanovllm {
namespace {

constexpr uint16_t kInfinity = 0x7c00, kSign = 0x8000;

// By the definition in IEEE 754, in other operations than half_to_float()'s.
double value_of(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & kSign) != 0 ? -magnitude : magnitude;
}

TEST(Float16, EveryNumberIsReadAndGivenBack) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float number = half_to_float(half);
    if ((half & 0x7fff) > kInfinity) {
      ASSERT_TRUE(std::isnan(number)) << i;
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(number)))) << i;
      continue;
    }
    if ((half & 0x7fff) < kInfinity) ASSERT_EQ(number, value_of(half)) << i;
    ASSERT_EQ(std::signbit(number), (half & kSign) != 0) << i;
    ASSERT_EQ(float_to_half(number), half) << i;
  }
}

// Between each two neighbours, the largest and what would be the next one after it among them.
TEST(Float16, NumbersGoToTheNearestAndTiesToEven) {
  for (uint16_t half = 0; half < kInfinity; ++half) {
    const auto next = static_cast<uint16_t>(half + 1);
    const float middle =
        static_cast<float>((value_of(half) + (next == kInfinity ? 65536 : value_of(next))) / 2);
    for (const uint16_t sign : {uint16_t{0}, kSign}) {
      const auto rounded = [&](float magnitude) {
        return float_to_half(sign == 0 ? magnitude : -magnitude);
      };
      ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), sign | half);
      ASSERT_EQ(rounded(std::nextafter(middle, 1e6f)), sign | next);
      ASSERT_EQ(rounded(middle), sign | (half % 2 == 0 ? half : next));
    }
  }
}

TEST(Float16, NumbersOutOfItsRangeAreInfiniteOrZero) {
  using Limits = std::numeric_limits<float>;
  for (const float large : {65520.0f, 65536.0f, Limits::max(), Limits::infinity()}) {
    EXPECT_EQ(float_to_half(large), kInfinity) << large;
    EXPECT_EQ(float_to_half(-large), kSign | kInfinity) << large;
  }
  for (const float small : {0.0f, Limits::denorm_min(), Limits::min(), 0x1p-25f}) {
    EXPECT_EQ(float_to_half(small), 0) << small;
    EXPECT_EQ(float_to_half(-small), kSign) << small;
  }
}

TEST(E4M3, EveryCodeIsWhatOcpDefines) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const float number = e4m3_to_float(static_cast<uint8_t>(code));
    if (code % 128 == 127) {
      EXPECT_TRUE(std::isnan(number)) << code;
    } else {
      EXPECT_EQ(number, code < 128 ? magnitude : -magnitude) << code;
      EXPECT_EQ(std::signbit(number), code >= 128) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(126), 448);
}

}  // namespace
}  // namespace nanovllm
