#include "base/quantity.h"

#include <gtest/gtest.h>

namespace nanovllm {
namespace {

TEST(Quantity, HasDecimalAndBinarySuffixes) {
  for (const bool is_bytes : {false, true}) {
    EXPECT_EQ(parse_quantity("8k", is_bytes), 8000);
    EXPECT_EQ(parse_quantity("8K", is_bytes), 8192);
    EXPECT_EQ(parse_quantity("25.6k", is_bytes), 25600);
    EXPECT_EQ(parse_quantity("1.5K", is_bytes), 1536);
    EXPECT_EQ(parse_quantity("2m", is_bytes), 2e6);
    EXPECT_EQ(parse_quantity("3G", is_bytes), 3.0 * (1 << 30));
    EXPECT_EQ(parse_quantity("1T", is_bytes), 0x1p40);
    for (const char* none :
         {"", "k", "-1K", "8x", "8KK", "8 K", " 8K", "8Kb", "nanK", "infK", "0x8K"}) {
      EXPECT_EQ(parse_quantity(none, is_bytes), std::nullopt) << none;
    }
  }
}

TEST(Quantity, OfBytesMayBePlainOrSaySo) {
  EXPECT_EQ(parse_quantity("512", true), 512);
  EXPECT_EQ(parse_quantity("512", false), std::nullopt);
  EXPECT_EQ(parse_quantity("4GB", true), 4.0 * (1 << 30));
  EXPECT_EQ(parse_quantity("1.5GiB", true), 1.5 * (1 << 30));
  EXPECT_EQ(parse_quantity("4GB", false), std::nullopt);
  EXPECT_EQ(parse_quantity("4B", true), std::nullopt);
  EXPECT_EQ(parse_quantity("1e9", true), 1e9);
  EXPECT_EQ(parse_quantity("1e3k", false), std::nullopt);
}

}  // namespace
}  // namespace nanovllm
