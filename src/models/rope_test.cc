#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/testing.h"

namespace nanovllm {
namespace {

ModelConfig config_with(const std::string& kind) {
  ModelConfig config;
  config.model_dir = "dir";
  config.head_dim = 64;
  config.rope_theta = 500000;
  config.max_position_embeddings = 8192;
  config.rope_scaling.kind = kind;
  config.rope_scaling.factor = 8;
  config.rope_scaling.original_max_position_embeddings = 2048;
  return config;
}

TEST(Rope, TableHoldsCosinesThenSinesOfEveryPosition) {
  const RopeFrequencies frequencies = rope_frequencies(config_with("default"));
  constexpr int kPositions = 20000;
  const std::vector<float> table = rope_table(frequencies, kPositions);
  ASSERT_EQ(table.size(), size_t{kPositions} * 64);
  for (const int position : {0, 1, 63, 64, 65, 127, 4095, 19999}) {
    for (int i = 0; i < 32; ++i) {
      const double angle = position * std::pow(500000.0, -2.0 * i / 64);
      EXPECT_NEAR(table[position * 64 + i], std::cos(angle), 1e-7) << position << " " << i;
      EXPECT_NEAR(table[position * 64 + 32 + i], std::sin(angle), 1e-7) << position << " " << i;
    }
  }
}

TEST(Rope, LinearScalingStretchesEveryFrequency) {
  const RopeFrequencies plain = rope_frequencies(config_with("default"));
  const RopeFrequencies scaled = rope_frequencies(config_with("linear"));
  for (size_t i = 0; i < 32; ++i) EXPECT_DOUBLE_EQ(scaled.inverse[i], plain.inverse[i] / 8);
  EXPECT_EQ(scaled.magnitude, 1);
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeFrequencies plain = rope_frequencies(config_with("default"));
  const RopeFrequencies scaled = rope_frequencies(config_with("llama3"));
  EXPECT_EQ(scaled.inverse.front(), plain.inverse.front());
  EXPECT_DOUBLE_EQ(scaled.inverse.back(), plain.inverse.back() / 8);
  int blended = 0;
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_LE(scaled.inverse[i], plain.inverse[i]);
    EXPECT_GE(scaled.inverse[i], plain.inverse[i] / 8);
    const double wavelength = 2 * M_PI / plain.inverse[i];
    blended += wavelength > 2048.0 / 4 && wavelength < 2048;
  }
  EXPECT_GT(blended, 0);
}

TEST(Rope, YarnKeepsFastDimensionsAndScalesTheMagnitude) {
  const RopeFrequencies plain = rope_frequencies(config_with("default"));
  ModelConfig config = config_with("yarn");
  const RopeFrequencies scaled = rope_frequencies(config);
  EXPECT_DOUBLE_EQ(scaled.inverse.front(), plain.inverse.front());
  EXPECT_DOUBLE_EQ(scaled.inverse.back(), plain.inverse.back() / 8);
  EXPECT_DOUBLE_EQ(scaled.magnitude, 0.1 * std::log(8.0) + 1);
  EXPECT_NEAR(rope_table(scaled, 1)[0], scaled.magnitude, 1e-6);
  config.rope_scaling.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(config).magnitude, 1.25);
}

TEST(Rope, UnknownKindsAreNamed) {
  const Error error = testing::error_of([] { rope_frequencies(config_with("dynamic")); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(std::string(error.what()),
            "dir/config.json: rotary embedding of kind \"dynamic\" is not supported, only default, "
            "linear, llama3 and yarn");
}

}  // namespace
}  // namespace nanovllm
