// Rows for the tests of sampling, and one call that samples them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ops/sampling.h"

namespace nanovllm {

inline std::vector<float> normal_logits(size_t n, uint32_t seed, float spread) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(rng);
  return logits;
}

// Logits whose softmax is `probabilities`.
inline std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// `rows` of equally long logits, one after the other; samples a copy.
inline std::vector<SamplingResult> sample_rows(Backend& backend,
                                               const std::vector<SamplingRow>& rows,
                                               std::vector<float> logits) {
  std::vector<SamplingResult> results(rows.size());
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto vocab_size = static_cast<int64_t>(logits.size()) / num_rows;
  const Tensor tensor(logits.data(), DType::kFloat32, {num_rows, vocab_size});
  backend.sample(rows, tensor, nullptr, nullptr)->collect(results);
  return results;
}

inline SamplingResult sample_row(Backend& backend, const SamplingRow& row,
                                 const std::vector<float>& logits) {
  return sample_rows(backend, {row}, logits)[0];
}

}  // namespace nanovllm
