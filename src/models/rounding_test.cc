// Weights that are rounded while they are loaded: the folder that has them rounded is the same
// model, and what it says is near to what the numbers say.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
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
  ModelRig rig(model, dtype, make_cpu_backend(2), 16, {.rounding = rounding});
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 37 % 310);
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

// Matrices in several pieces and fused ones, biases, tied heads, experts, recurrent layers, parts
// of larger models.
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
                                           "gemma3_multimodal", "qwen2_moe", "qwen3_5",
                                           "qwen3_next", "olmo_hybrid"),
                         [](const auto& test) { return std::string(test.param); });

// Also with stacks of experts, which lie transposed.
TEST(RoundingOf, LogitsAreNearToThoseOfTheNumbers) {
  for (const char* name : {"gpt_oss_plain", "qwen3_moe", "llama3"}) {
    SCOPED_TRACE(name);
    const Rows exact = logits_of(golden_dir(name), DType::kFloat32);
    const std::map<RoundedFormat, double> most = {
        {RoundedFormat::kInt8, 0.1}, {RoundedFormat::kInt4, 0.6}, {RoundedFormat::kFp8, 0.25}};
    for (const auto& [format, bound] : most) {
      const Rows rows = logits_of(golden_dir(name), DType::kFloat32, format);
      EXPECT_LT(relative_difference(rows, exact), bound) << static_cast<int>(format);
      EXPECT_GT(relative_difference(rows, exact), 0.001) << static_cast<int>(format);
    }
  }
}

// The CPU, but it tells of the matrices that it gets, and whether products are to use tables.
class RecordingBackend final : public CpuBackend {
 public:
  explicit RecordingBackend(bool has_own_memory)
      : CpuBackend({.num_threads = 1}), has_own_memory_(has_own_memory) {}
  BackendTraits traits() const override {
    return {.shares_host_memory = !has_own_memory_, .computes_with_codes = computes_with_codes};
  }
  std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype) override {
    for (const HostMatrix& piece : pieces) {
      ++num_pieces;
      num_coded += piece.codes != nullptr ? 1 : 0;
      num_heads += piece.rows == vocab_size ? 1 : 0;
    }
    return CpuBackend::make_linear(pieces, bias, dtype);
  }
  std::unique_ptr<LinearWeight> make_linear_of_table(Tensor /*table*/) override {
    if (!has_own_memory_) return nullptr;
    ++num_of_tables;
    return std::make_unique<LinearWeight>();
  }

  bool computes_with_codes = true;
  int64_t vocab_size = 0;
  int num_pieces = 0, num_coded = 0, num_heads = 0, num_of_tables = 0;

 private:
  const bool has_own_memory_;
};

// Of a file in Q8_0 whose head is tied, and of numbers that are rounded.
TEST(WeightLayoutOption, ATiedHeadIsPackedOnceInItsCodes) {
  const auto load = [](const char* name, bool has_own_memory, bool keeps_codes,
                       std::optional<RoundedFormat> rounding, bool computes_with_codes = true) {
    const ModelConfig config = load_model_config(golden_dir(name));
    const WeightStore weights(golden_dir(name), config.quantization, config.gguf);
    auto backend = std::make_unique<RecordingBackend>(has_own_memory);
    backend->vocab_size = config.vocab_size;
    backend->computes_with_codes = computes_with_codes;
    make_model({.config = config,
                .weights = weights,
                .backend = *backend,
                .dtype = DType::kBFloat16,
                .max_num_tokens = 8,
                .max_num_logits = 8,
                .max_model_len = 8,
                .num_loading_threads = 1,
                .keeps_codes = keeps_codes,
                .rounding = rounding});
    return backend;
  };
  for (const auto& [name, rounding] :
       {std::pair("gguf_gemma3", std::optional<RoundedFormat>()),
        std::pair("qwen3_tied", std::optional(RoundedFormat::kInt4))}) {
    SCOPED_TRACE(name);
    for (const bool has_own_memory : {false, true}) {
      const auto coded = load(name, has_own_memory, true, rounding);
      EXPECT_GT(coded->num_coded, 0);
      EXPECT_EQ(coded->num_heads, 1);
      EXPECT_EQ(coded->num_of_tables, 0);
      const auto decoded = load(name, has_own_memory, false, rounding);
      EXPECT_EQ(decoded->num_coded, 0);
      // A head that is rounded has other numbers than the table.
      EXPECT_EQ(decoded->num_of_tables, has_own_memory && !rounding ? 1 : 0);
      EXPECT_EQ(decoded->num_heads, 1 - decoded->num_of_tables);
    }
  }
  // With memory of its own a backend packs the table, too, and a head that is not tied besides.
  EXPECT_EQ(load("gguf_olmo2", false, true, std::nullopt)->num_heads, 1);
  const auto two = load("gguf_olmo2", true, true, std::nullopt);
  EXPECT_EQ(two->num_heads, 2);
  EXPECT_EQ(two->num_of_tables, 0);
  // Rows that are no whole groups stay numbers, which the table has.
  const auto kept = load("gemma3", true, true, RoundedFormat::kInt8);
  EXPECT_EQ(kept->num_of_tables, 1);
  EXPECT_EQ(kept->num_heads, 0);
  const auto plain = load("qwen3_tied", false, true, std::nullopt);
  EXPECT_EQ(plain->num_coded, 0);
  // Nor does a backend whose products take no codes get any.
  const auto without = load("gguf_gemma3", true, true, std::nullopt, false);
  EXPECT_EQ(without->num_coded, 0);
  EXPECT_EQ(without->num_of_tables, 1);
  EXPECT_EQ(without->num_heads, 0);
}

// On the CPU it is read where it lies, in the file's format; elsewhere it is packed, once where the
// head is tied.
TEST(WeightLayoutOption, TheTableOfEmbeddingsStaysInItsCodes) {
  const std::string path = golden_dir("gguf_gemma3");
  const ModelConfig config = load_model_config(path);
  const int64_t rows = config.vocab_size, cols = config.hidden_size;
  const WeightStore weights(path, std::nullopt, config.gguf);
  const StoredTensor table = weights.get("model.embed_tokens.weight", {rows, cols});
  ASSERT_NE(table.decoder, nullptr);
  const auto bytes_beside_matrices = [&](std::unique_ptr<Backend> backend) {
    ModelRig rig(path, DType::kBFloat16, std::move(backend), 16);
    int64_t bytes = rig.model().weight_bytes();
    for (const LayoutUse& use : rig.model().weight_layouts()) bytes -= use.bytes;
    return bytes;
  };
  constexpr int64_t kNorms = 8192;
  const int64_t mapped = bytes_beside_matrices(make_cpu_backend(1));
  EXPECT_GE(mapped, table.bytes);
  EXPECT_LT(mapped, table.bytes + kNorms);
  EXPECT_LT(table.bytes + kNorms, rows * cols * 2);
  const int64_t packed = bytes_beside_matrices(std::make_unique<RecordingBackend>(true));
  EXPECT_EQ(packed, mapped - table.bytes);
}

}  // namespace
}  // namespace nanovllm
