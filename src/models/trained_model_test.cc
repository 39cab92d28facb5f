// Trained models against the greedy tokens that references wrote with them: the demo model of this
// repository, and a checkpoint of the reference data.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/testing.h"
#include "io/reference_data_testing.h"
#include "io/shards_testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::expect_greedy;
using testing::ModelRig;
using testing::Rows;

nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

// golden.json: see models/demo/README.md. The bounds of golden_test.cc, but for its
// percentile, which so few tokens do not have; bfloat16 is compared where both have read
// transformers' float32 tokens.
TEST(DemoModel, GivesTheTokensOfTransformers) {
  const std::string dir = test::source_path("models/demo");
  const auto document = read_json(dir + "/golden.json");
  ModelRig exact(dir, DType::kFloat32, make_cpu_backend(2), 16);
  ModelRig rounded(dir, DType::kBFloat16, make_cpu_backend(2), 16);
  std::vector<double> ours, theirs;
  int sequence = 0;
  for (const auto& item : document.at("cases")) {
    const std::vector<int32_t> ids = item.at("prompt_token_ids");
    const std::vector<int32_t> tokens = item.at("float32").at("token_ids");
    const std::vector<float> margins = item.at("float32").at("margins");
    const std::vector<float> logprobs = item.at("float32").at("logprobs");
    const std::vector<float> rough = item.at("bfloat16").at("logprobs_of_float32_token_ids");
    const Rows exact_rows = exact.continuation(sequence, ids, tokens);
    const Rows rounded_rows = rounded.continuation(sequence, ids, tokens);
    expect_greedy(exact_rows, tokens, margins, 0.01f);
    expect_greedy(rounded_rows, tokens, margins, 0.25f);
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_NEAR(testing::log_softmax(exact_rows[i])[tokens[i]], logprobs[i], 1e-3);
      ours.push_back(testing::log_softmax(rounded_rows[i])[tokens[i]] - logprobs[i]);
      theirs.push_back(rough[i] - logprobs[i]);
    }
    ++sequence;
  }
  EXPECT_GT(ours.size(), 100u);
  EXPECT_LE(testing::root_mean_square(ours), 1.2 * testing::root_mean_square(theirs));
}

TEST(DemoModel, GivesTheSameBitsFromShards) {
  const std::string dir = test::source_path("models/demo");
  const testing::TempDir shards;
  testing::write_shards(dir, 3, shards);
  std::filesystem::copy_file(dir + "/config.json", shards.path() + "/config.json");
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  ModelRig from_whole(dir, DType::kBFloat16, make_cpu_backend(2), 16);
  ModelRig from_shards(shards.path(), DType::kBFloat16, make_cpu_backend(2), 16);
  EXPECT_EQ(from_shards.step({{0, ids}}), from_whole.step({{0, ids}}));
}

// The trained checkpoint's golden.json comes from a reference in float64.
class TrainedCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainedCheckpoint, GivesItsGoldenTokens) {
  const auto data = testing::unpacked_archive("checkpoints");
  if (data.empty()) GTEST_SKIP() << testing::archive_of("checkpoints") << " is not there";
  const std::string dir = data / GetParam();
  // Shards hold the same weights and have no golden.json of their own.
  const auto document = read_json(data / "stories260K-hf/golden.json");
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    ModelRig rig(dir, dtype, make_cpu_backend(2), 16);
    int sequence = 0;
    for (const auto& item : document.at("cases")) {
      const std::vector<int32_t> tokens = item.at("greedy");
      const Rows rows = rig.continuation(sequence++, item.at("ids"), tokens);
      expect_greedy(rows, tokens, item.at("gap"), dtype == DType::kFloat32 ? 0.01f : 0.25f);
      if (dtype == DType::kBFloat16) continue;
      const std::vector<float> expected = item.at("last_logits");
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rows[0][i], expected[i], 1e-3);
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
