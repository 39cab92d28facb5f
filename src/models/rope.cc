#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended.
double llama3_frequency(double inverse, const RopeScaling& scaling) {
  const double wavelength = kTwoPi / inverse;  // positions a turn
  const double context = scaling.original_max_position_embeddings;
  if (wavelength < context / scaling.high_freq_factor) return inverse;
  if (wavelength > context / scaling.low_freq_factor) return inverse / scaling.factor;
  const double blend = (context / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * inverse / scaling.factor + blend * inverse;
}

// YaRN, section 3.2: dimensions that turn often enough within the original context keep their
// frequency, those that turn less than beta_slow times are stretched, with a ramp between.
void apply_yarn(const ModelConfig& config, RopeFrequencies& frequencies) {
  const RopeScaling& scaling = config.rope_scaling;
  const double dim = config.rotated();
  const auto dimension_that_turns = [&](double rotations) {
    return dim * std::log(scaling.original_max_position_embeddings / (rotations * kTwoPi)) /
           (2 * std::log(config.rope_theta));
  };
  double low = dimension_that_turns(scaling.beta_fast);
  double high = dimension_that_turns(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& inverse = frequencies.inverse[i];
    inverse = inverse / scaling.factor * ramp + inverse * (1 - ramp);
  }
  frequencies.magnitude = scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config, int max_model_len) {
  const RopeScaling& scaling = config.rope_scaling;
  RopeFrequencies frequencies;
  frequencies.inverse.resize(config.rotated() / 2);
  for (size_t i = 0; i < frequencies.inverse.size(); ++i) {
    frequencies.inverse[i] =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.rotated());
  }
  if (scaling.kind == "linear") {
    for (double& inverse : frequencies.inverse) inverse /= scaling.factor;
  } else if (scaling.kind == "llama3") {
    for (double& inverse : frequencies.inverse) inverse = llama3_frequency(inverse, scaling);
  } else if (scaling.kind == "yarn") {
    apply_yarn(config, frequencies);
  } else if (scaling.kind != "default") {
    throw_error(ErrorCode::kUnsupported,
                "{}: rotary embedding of kind \"{}\" is not supported, only default, "
                "linear, llama3 and yarn",
                config.config_path, scaling.kind);
  }
  const bool is_long =
      !scaling.long_divisors.empty() && max_model_len > scaling.original_max_position_embeddings;
  const std::vector<double>& divisors = is_long ? scaling.long_divisors : scaling.divisors;
  for (size_t i = 0; i < divisors.size(); ++i) frequencies.inverse[i] /= divisors[i];
  if (scaling.attention_factor > 0 && (scaling.kind == "yarn" || !divisors.empty())) {
    frequencies.magnitude = scaling.attention_factor;
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeFrequencies& frequencies, int num_positions) {
  const size_t half = frequencies.inverse.size();
  std::vector<float> table(static_cast<size_t>(num_positions) * 2 * half);
  // A sine costs far more than a product: position = start + offset, and the angle sum formulas
  // give the rest from the turns of `start` and of the first kStride positions.
  constexpr int kStride = 64;
  struct Turn {
    double cos, sin;
  };
  const auto turns_at = [&](int position, double magnitude) {
    std::vector<Turn> turns(half);
    for (size_t i = 0; i < half; ++i) {
      const double angle = position * frequencies.inverse[i];
      turns[i] = {magnitude * std::cos(angle), magnitude * std::sin(angle)};
    }
    return turns;
  };
  std::vector<std::vector<Turn>> offsets(kStride);
  for (int offset = 0; offset < kStride; ++offset) offsets[offset] = turns_at(offset, 1);
  std::vector<Turn> starts;
  for (int position = 0; position < num_positions; ++position) {
    const int offset = position % kStride;
    if (offset == 0) starts = turns_at(position, frequencies.magnitude);
    float* row = table.data() + static_cast<size_t>(position) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const Turn a = starts[i];
      const Turn b = offsets[offset][i];
      row[i] = static_cast<float>(a.cos * b.cos - a.sin * b.sin);
      row[half + i] = static_cast<float>(a.sin * b.cos + a.cos * b.sin);
    }
  }
  return table;
}

}  // namespace nanovllm
