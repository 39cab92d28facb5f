#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/testing.h"

namespace nanovllm {
namespace {

ModelConfig config_with(const std::string& kind) {
  ModelConfig config;
  config.config_path = "dir/config.json";
  config.head_dim = 64;
  config.rope_theta = 500000;
  config.max_position_embeddings = 8192;
  config.rope_scaling.kind = kind;
  config.rope_scaling.factor = 8;
  config.rope_scaling.original_max_position_embeddings = 2048;
  return config;
}

TEST(Rope, TableHoldsCosinesThenSinesOfEveryPosition) {
  const RopeFrequencies frequencies = rope_frequencies(config_with("default"), 1);
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
  const RopeFrequencies plain = rope_frequencies(config_with("default"), 1);
  const RopeFrequencies scaled = rope_frequencies(config_with("linear"), 1);
  for (size_t i = 0; i < 32; ++i) EXPECT_DOUBLE_EQ(scaled.inverse[i], plain.inverse[i] / 8);
  EXPECT_EQ(scaled.magnitude, 1);
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeFrequencies plain = rope_frequencies(config_with("default"), 1);
  const RopeFrequencies scaled = rope_frequencies(config_with("llama3"), 1);
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
  const RopeFrequencies plain = rope_frequencies(config_with("default"), 1);
  ModelConfig config = config_with("yarn");
  const RopeFrequencies scaled = rope_frequencies(config, 1);
  EXPECT_DOUBLE_EQ(scaled.inverse.front(), plain.inverse.front());
  EXPECT_DOUBLE_EQ(scaled.inverse.back(), plain.inverse.back() / 8);
  EXPECT_DOUBLE_EQ(scaled.magnitude, 0.1 * std::log(8.0) + 1);
  EXPECT_NEAR(rope_table(scaled, 1)[0], scaled.magnitude, 1e-6);
  config.rope_scaling.attention_factor = 1.25;
  EXPECT_EQ(rope_frequencies(config, 1).magnitude, 1.25);
}

// From transformers 5.23 (ROPE_INIT_FUNCTIONS), in float32: Llama 3.1's shape.
TEST(Rope, FrequenciesAreThoseOfTransformers) {
  ModelConfig config = config_with("llama3");
  config.head_dim = 128;
  config.max_position_embeddings = 65536;
  config.rope_scaling.original_max_position_embeddings = 8192;
  const int dimensions[] = {0, 20, 26, 29, 30, 31, 32, 33, 34, 35, 36, 40, 63};
  const double llama3[] = {1,
                           0.016560441,
                           0.0048394212,
                           0.0021665706,
                           0.0013718937,
                           0.00085675146,
                           0.00052484602,
                           0.00031269365,
                           0.00017850779,
                           9.5562122e-05,
                           7.7846555e-05,
                           3.4281024e-05,
                           3.0689259e-07};
  const double yarn[] = {1,
                         0.01485569,
                         0.0028467185,
                         0.0011349253,
                         0.00081483979,
                         0.00057442719,
                         0.00039514786,
                         0.00026259795,
                         0.00016561303,
                         9.5562122e-05,
                         7.7846555e-05,
                         3.4281024e-05,
                         3.0689259e-07};
  for (size_t i = 0; i < std::size(dimensions); ++i) {
    config.rope_scaling.kind = "llama3";
    const double value = rope_frequencies(config, 1).inverse[dimensions[i]];
    EXPECT_NEAR(value, llama3[i], 2e-6 * llama3[i]) << dimensions[i];
    config.rope_scaling.kind = "yarn";
    const double stretched = rope_frequencies(config, 1).inverse[dimensions[i]];
    EXPECT_NEAR(stretched, yarn[i], 2e-6 * yarn[i]) << dimensions[i];
  }
}

TEST(Rope, UnknownKindsAreNamed) {
  const Error error = testing::error_of([] { rope_frequencies(config_with("dynamic"), 1); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(std::string(error.what()),
            "dir/config.json: rotary embedding of kind \"dynamic\" is not supported, only default, "
            "linear, llama3 and yarn");
}

}  // namespace
}  // namespace nanovllm
