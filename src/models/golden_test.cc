// Our models against transformers on the same weights: tests/goldens (tools/make_goldens.py) and a
// trained checkpoint, on every instruction set this machine has.
//
// float32: every prompt log-probability, and those of the most likely tokens of every position,
// within 1e-3 of transformers in float32, and the same greedy token wherever its margin (its logit
// minus the second's) exceeds 0.01. bfloat16: over all prompt log-probabilities of a checkpoint,
// both the root mean square and the largest deviation from transformers in float32 are at most 1.2
// times those of transformers in bfloat16; the same greedy token wherever its margin exceeds 0.25.
//
// Greedy tokens are compared with the golden continuation fed in, so that each is tested.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_backend.h"
#include "io/testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::Chunk;
using testing::ModelRig;

using Rows = std::vector<std::vector<float>>;  // [position][vocab]

struct GoldenCase {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of ids[1..]
  std::vector<float> bfloat16_logprobs;
  std::vector<std::vector<std::pair<int32_t, float>>> top;
  std::vector<int32_t> greedy;
  std::vector<float> margins;

  // The prompt and its continuation.
  std::vector<int32_t> all_ids() const {
    std::vector<int32_t> all = ids;
    all.insert(all.end(), greedy.begin(), greedy.end());
    return all;
  }
};

std::string golden_dir(const std::string& name) {
  return std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/" + name;
}

std::vector<GoldenCase> load_cases(const std::string& name) {
  const auto document = nlohmann::json::parse(std::ifstream(golden_dir(name) + "/golden.json"));
  std::vector<GoldenCase> cases;
  for (const auto& item : document.at("cases")) {
    cases.push_back({item.at("ids"), item.at("logprobs"), item.at("bfloat16_logprobs"),
                     item.at("top"), item.at("greedy"), item.at("margins")});
  }
  return cases;
}

std::unique_ptr<Backend> make_backend(Isa isa, int num_threads) {
  return std::make_unique<CpuBackend>(CpuOptions{.num_threads = num_threads, .max_isa = isa});
}

// Each prompt alone and at once, then its continuation token by token.
std::vector<Rows> compute_alone(ModelRig& rig, const std::vector<GoldenCase>& cases) {
  std::vector<Rows> result;
  for (size_t c = 0; c < cases.size(); ++c) {
    const int sequence = static_cast<int>(c);
    Rows rows = rig.step({{sequence, cases[c].ids}})[0];
    for (const int32_t id : cases[c].greedy) rows.push_back(rig.step({{sequence, {id}}})[0][0]);
    result.push_back(std::move(rows));
  }
  return result;
}

// All prompts together, in chunks of changing sizes, some decoding while others are still at their
// prompt.
std::vector<Rows> compute_mixed(ModelRig& rig, const std::vector<GoldenCase>& cases) {
  constexpr size_t kSizes[] = {1, 7, 16, 33, 2, 21};
  std::vector<Rows> result(cases.size());
  for (size_t round = 0;; ++round) {
    std::vector<Chunk> chunks;
    for (size_t c = 0; c < cases.size(); ++c) {
      const std::vector<int32_t> all = cases[c].all_ids();
      const size_t done = result[c].size();
      const size_t prompt_left = cases[c].ids.size() - std::min(done, cases[c].ids.size());
      const size_t count = std::min({kSizes[(round + c) % std::size(kSizes)],
                                     std::max<size_t>(prompt_left, 1), all.size() - done});
      if (count == 0) continue;
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(done);
      chunks.push_back({static_cast<int>(c), {begin, begin + static_cast<std::ptrdiff_t>(count)}});
    }
    if (chunks.empty()) return result;
    const auto logits = rig.step(chunks);
    for (size_t i = 0; i < chunks.size(); ++i) {
      Rows& rows = result[chunks[i].sequence];
      rows.insert(rows.end(), logits[i].begin(), logits[i].end());
    }
  }
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

int32_t most_likely(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void expect_greedy(const GoldenCase& golden, const Rows& rows, float margin) {
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    if (golden.margins[i] <= margin) continue;
    EXPECT_EQ(most_likely(rows[golden.ids.size() - 1 + i]), golden.greedy[i])
        << "token " << i << " after " << golden.ids.size() << ", margin " << golden.margins[i];
  }
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { cases_ = load_cases(GetParam()); }
  std::vector<GoldenCase> cases_;
};

TEST_P(Golden, Float32LogProbabilitiesAndGreedyTokensAreThoseOfTransformers) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(to_string(isa));
    ModelRig rig(golden_dir(GetParam()), DType::kFloat32, make_backend(isa, 2), 16);
    const std::vector<Rows> rows = compute_mixed(rig, cases_);
    for (size_t c = 0; c < cases_.size(); ++c) {
      const GoldenCase& golden = cases_[c];
      for (size_t i = 0; i < golden.ids.size(); ++i) {
        const std::vector<double> logprobs = log_softmax(rows[c][i]);
        if (i + 1 < golden.ids.size()) {
          EXPECT_NEAR(logprobs[golden.ids[i + 1]], golden.logprobs[i], 1e-3);
        }
        for (const auto& [id, logprob] : golden.top[i]) EXPECT_NEAR(logprobs[id], logprob, 1e-3);
      }
      expect_greedy(golden, rows[c], 0.01f);
    }
  }
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double percentile_99(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

TEST_P(Golden, Bfloat16IsAsExactAsTransformers) {
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(to_string(isa));
    ModelRig rig(golden_dir(GetParam()), DType::kBFloat16, make_backend(isa, 2), 32);
    const std::vector<Rows> rows = compute_mixed(rig, cases_);
    std::vector<double> ours, theirs;
    for (size_t c = 0; c < cases_.size(); ++c) {
      const GoldenCase& golden = cases_[c];
      for (size_t i = 0; i + 1 < golden.ids.size(); ++i) {
        ours.push_back(log_softmax(rows[c][i])[golden.ids[i + 1]] - golden.logprobs[i]);
        theirs.push_back(golden.bfloat16_logprobs[i] - golden.logprobs[i]);
      }
      expect_greedy(golden, rows[c], 0.25f);
    }
    EXPECT_LE(root_mean_square(ours), 1.2 * root_mean_square(theirs));
    EXPECT_LE(percentile_99(ours), 1.2 * percentile_99(theirs));
    const auto record = [](const std::string& name, const std::vector<double>& errors) {
      RecordProperty("rms_" + name, std::to_string(root_mean_square(errors)));
      RecordProperty("percentile_99_" + name, std::to_string(percentile_99(errors)));
    };
    record(to_string(isa), ours);
    record("transformers", theirs);
  }
}

TEST_P(Golden, ChunksBatchMatesAndThreadsChangeNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(to_string(isa));
      ModelRig one(golden_dir(GetParam()), dtype, make_backend(isa, 1), 16);
      ModelRig two(golden_dir(GetParam()), dtype, make_backend(isa, 2), 16);
      const std::vector<Rows> alone = compute_alone(one, cases_);
      const std::vector<Rows> mixed = compute_mixed(two, cases_);
      ASSERT_EQ(alone, mixed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         ::testing::Values("qwen3_tied", "qwen3_odd_vocab", "qwen3_yarn",
                                           "qwen2_tied", "qwen2_window", "llama2", "llama3",
                                           "llama_biases", "llama_linear", "mistral_window"),
                         [](const auto& test) { return std::string(test.param); });

// The trained checkpoint's golden.json comes from a reference in float64.
class TrainedCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainedCheckpoint, GivesItsGoldenTokens) {
  const auto data = testing::extract_shared_data("checkpoints.tar.xz");
  if (data == nullptr) GTEST_SKIP() << "../shared/data/checkpoints.tar.xz is not there";
  const std::string dir = data->path() + "/" + GetParam();
  // Shards hold the same weights and have no golden.json of their own.
  const auto document =
      nlohmann::json::parse(std::ifstream(data->path() + "/stories260K-hf/golden.json"));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    ModelRig rig(dir, dtype, make_backend(default_isa(), 2), 16);
    int sequence = 0;
    for (const auto& item : document.at("cases")) {
      GoldenCase golden;
      item.at("ids").get_to(golden.ids);
      item.at("greedy").get_to(golden.greedy);
      item.at("gap").get_to(golden.margins);
      Rows rows = rig.step({{sequence, golden.ids}})[0];
      if (dtype == DType::kFloat32) {
        const std::vector<float> expected = item.at("last_logits");
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rows.back()[i], expected[i], 1e-3);
      }
      for (const int32_t id : golden.greedy) rows.push_back(rig.step({{sequence, {id}}})[0][0]);
      expect_greedy(golden, rows, dtype == DType::kFloat32 ? 0.01f : 0.25f);
      ++sequence;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainedCheckpoint,
                         ::testing::Values("stories260K-hf", "stories260K-hf-sharded"),
                         [](const auto& test) {
                           return std::string(test.param) == "stories260K-hf" ? "Whole" : "Sharded";
                         });

}  // namespace
}  // namespace nanovllm
