// Weights that are rounded while they are loaded: the folder that has them rounded is the same
// model, and what it says is near to what the numbers say.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "io/rounded_folder.h"
#include "io/temp_dir_testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::golden_dir;
using testing::ModelRig;
using testing::Rows;

constexpr RoundedFormat kRoundings[] = {RoundedFormat::kInt8, RoundedFormat::kInt4,
                                        RoundedFormat::kFp8};

Rows logits_of(const std::string& model, DType dtype,
               std::optional<RoundedFormat> rounding = std::nullopt) {
  ModelRig rig(model, dtype, make_cpu_backend(2), 16, false, rounding);
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 37 % 380);
  Rows rows = rig.step({{0, ids}})[0];
  rows.push_back(rig.step({{0, {3}}})[0][0]);
  return rows;
}

// Of all logits: the root mean square of their differences by that of the expected ones.
double relative_difference(const Rows& rows, const Rows& expected) {
  double differences = 0, all = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t v = 0; v < expected[i].size(); ++v) {
      differences += std::pow(double{rows[i][v]} - expected[i][v], 2);
      all += std::pow(double{expected[i][v]}, 2);
    }
  }
  return std::sqrt(differences / all);
}

class Rounding : public ::testing::TestWithParam<const char*> {};

// Matrices in several pieces and fused ones, biases, tied heads, experts, parts of larger models.
TEST_P(Rounding, AFolderIsTheModelThatIsRoundedWhileItIsLoaded) {
  const std::string model = golden_dir(GetParam());
  for (const RoundedFormat format : kRoundings) {
    const testing::TempDir folder;
    write_rounded_folder(model, folder.path(), format, 1, [](int64_t, int64_t) {});
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      EXPECT_EQ(logits_of(folder.path(), dtype), logits_of(model, dtype, format));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Rounding,
                         ::testing::Values("qwen3_moe", "qwen3_tied", "phi3", "llama_biases",
                                           "gemma3_multimodal", "qwen2_moe"),
                         [](const auto& test) { return std::string(test.param); });

// Also with stacks of experts, which lie transposed.
TEST(RoundingOf, LogitsAreNearToThoseOfTheNumbers) {
  for (const char* name : {"gpt_oss_plain", "qwen3_moe", "llama3"}) {
    SCOPED_TRACE(name);
    const Rows exact = logits_of(golden_dir(name), DType::kFloat32);
    const std::map<RoundedFormat, double> most = {
        {RoundedFormat::kInt8, 0.03}, {RoundedFormat::kInt4, 0.4}, {RoundedFormat::kFp8, 0.15}};
    for (const auto& [format, bound] : most) {
      const Rows rows = logits_of(golden_dir(name), DType::kFloat32, format);
      EXPECT_LT(relative_difference(rows, exact), bound) << static_cast<int>(format);
      EXPECT_GT(relative_difference(rows, exact), 0.001) << static_cast<int>(format);
    }
  }
}

}  // namespace
}  // namespace nanovllm
