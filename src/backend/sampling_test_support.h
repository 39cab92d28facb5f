// Rows for the tests of sampling, and calls that sample them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/backend_cases.h"
#include "base/philox.h"
#include "base/testing.h"
#include "ops/sampling.h"

namespace nanovllm::test {

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

template <typename T>
std::unique_ptr<Buffer> on_device(Backend& backend, const std::vector<T>& values) {
  std::unique_ptr<Buffer> buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer->data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

inline void expect_near(const std::vector<LogprobEntry>& actual,
                        const std::vector<LogprobEntry>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(actual[k].token_id, expected[k].token_id);
    EXPECT_EQ(actual[k].rank, expected[k].rank);
    EXPECT_NEAR(actual[k].logprob, expected[k].logprob, 2e-5);
  }
}

// `rows` of equally long logits, one after the other; samples a copy.
inline std::vector<SamplingResult> sample_rows(Backend& backend,
                                               const std::vector<SamplingRow>& rows,
                                               const std::vector<float>& logits) {
  const auto device = on_device(backend, logits);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto vocab_size = static_cast<int64_t>(logits.size()) / num_rows;
  const Tensor tensor(device->data(), DType::kFloat32, {num_rows, vocab_size});
  std::vector<SamplingResult> results(rows.size());
  backend.sample(rows, tensor, nullptr, nullptr)->collect(results);
  return results;
}

inline SamplingResult sample_row(Backend& backend, const SamplingRow& row,
                                 const std::vector<float>& logits) {
  return sample_rows(backend, {row}, logits)[0];
}

// The tokens drawn at positions 0, 1, ... of one seed.
inline std::vector<int32_t> draws(Backend& backend, const SamplingRow& row,
                                  const std::vector<float>& logits, int num_draws) {
  constexpr int kAtOnce = 1000;
  std::vector<float> copies;
  for (int i = 0; i < std::min(kAtOnce, num_draws); ++i) {
    copies.insert(copies.end(), logits.begin(), logits.end());
  }
  std::vector<int32_t> ids;
  while (static_cast<int>(ids.size()) < num_draws) {
    const int count = std::min(kAtOnce, num_draws - static_cast<int>(ids.size()));
    std::vector<SamplingRow> rows(count, row);
    for (int i = 0; i < count; ++i) rows[i].position = ids.size() + i;
    copies.resize(count * logits.size());
    for (const SamplingResult& result : sample_rows(backend, rows, copies)) {
      ids.push_back(result.token_id);
    }
  }
  return ids;
}

// The token must be the one of `probabilities`, draw for draw. Only where u lies so near the end of
// a token's share of the unit interval that sums in float32 may fall on the other side, it may be
// the next token that can come.
inline void expect_drawn(int32_t token, const SamplingRow& row,
                         const std::vector<double>& probabilities) {
  constexpr double kRounding = 5e-6;
  ASSERT_GE(token, 0);
  ASSERT_LT(token, static_cast<int32_t>(probabilities.size()));
  EXPECT_GT(probabilities[token], 0);
  const auto begin = probabilities.begin();
  const double before = std::accumulate(begin, begin + token, 0.0);
  const double u = philox_uniform(row.seed, row.position);
  EXPECT_GE(u, before - kRounding);
  EXPECT_LT(u, before + probabilities[token] + kRounding);
}

class SamplingBackendTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  const std::unique_ptr<Backend> backend_ = GetParam().make(1);
};

inline std::string name_of_backend(const ::testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

}  // namespace nanovllm::test
