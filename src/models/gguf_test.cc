// A GGUF file computes what the Hugging Face folder it was made of does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/backend_cases.h"
#include "backend/registry.h"
#include "io/file.h"
#include "io/gguf_names.h"
#include "io/gguf_testing.h"
#include "io/k_quants_testing.h"
#include "io/safetensors.h"
#include "io/testing.h"
#include "models/rope.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::GgufWriter;
using testing::golden_dir;
using testing::ModelRig;
using testing::Rows;
using testing::TempDir;

constexpr uint32_t kF32 = 0, kF16 = 1, kBF16 = 30, kQ8_0 = 8;
constexpr int64_t kBlock = 32;  // elements of Q8_0

enum class Matrices { kAsTheyAre, kCoded, kDecoded };

std::string quantised(const std::vector<float>& numbers) {
  std::string blocks;
  for (size_t i = 0; i < numbers.size(); i += kBlock) {
    float largest = 0;
    for (size_t k = i; k < i + kBlock; ++k) largest = std::max(largest, std::abs(numbers[k]));
    const uint16_t half = float_to_half(largest / 127 + 1e-4f);
    const float scale = half_to_float(half);
    blocks.append(reinterpret_cast<const char*>(&half), 2);
    for (size_t k = i; k < i + kBlock; ++k) {
      blocks.push_back(static_cast<char>(std::lround(numbers[k] / scale)));
    }
  }
  return blocks;
}

std::string decoded(const std::string& blocks) {
  std::string floats;
  for (size_t i = 0; i < blocks.size(); i += 2 + kBlock) {
    uint16_t half;
    std::memcpy(&half, &blocks[i], 2);
    for (size_t k = i + 2; k < i + 2 + kBlock; ++k) {
      const float value = half_to_float(half) * static_cast<float>(static_cast<int8_t>(blocks[k]));
      floats.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  return floats;
}

// Rows of heads as llama.cpp's converter orders them: reshape(heads, 2, half).swapaxes(1, 2).
std::string interleaved(const std::string& bytes, int64_t rows, int64_t head) {
  std::string result;
  const int64_t row_bytes = static_cast<int64_t>(bytes.size()) / rows;
  for (int64_t first = 0; first < rows; first += head) {
    for (int64_t i = 0; i < head / 2; ++i) {
      for (const int64_t row : {first + i, first + head / 2 + i}) {
        result += bytes.substr(row * row_bytes, row_bytes);
      }
    }
  }
  return result;
}

class Converter {
 public:
  Converter(const std::string& folder, Matrices matrices)
      : config_(load_model_config(folder)),
        file_(folder + "/model.safetensors"),
        matrices_(matrices) {
    architecture_ = config_.model_type == "gemma3_text" ? "gemma3"
                    : config_.model_type == "olmo3"     ? "olmo2"
                                                        : config_.model_type;
  }

  std::string bytes() {
    writer_.add("general.architecture", architecture_);
    add("block_count", config_.num_hidden_layers);
    add("context_length", config_.max_position_embeddings);
    add("embedding_length", config_.hidden_size);
    add("feed_forward_length", config_.intermediate_size);
    add("attention.head_count", config_.num_attention_heads);
    add("attention.head_count_kv", config_.num_key_value_heads);
    add("attention.key_length", config_.head_dim);
    add("attention.value_length", config_.head_dim);
    add("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    add("rope.freq_base", static_cast<float>(config_.rope_theta));
    add_scaling();
    if (is_gemma()) {
      add("attention.scale", static_cast<float>(1 / std::sqrt(config_.query_scalar)));
      add("attention.sliding_window", config_.sliding_window);
      add("attention.sliding_window_pattern", 2);
      add("attn_logit_softcapping", config_.attention_soft_cap);
      add("final_logit_softcapping", config_.final_soft_cap);
    }
    if (config_.rotary_dim > 0) add("rope.dimension_count", config_.rotary_dim);
    if (architecture_ == "granite") {
      add("attention.scale", static_cast<float>(1 / std::sqrt(config_.query_scalar)));
      add("embedding_scale", config_.embedding_scale);
      add("residual_scale", config_.residual_scale);
      add("logit_scale", 1 / config_.logit_scale);
    }
    if (config_.sliding_window > 0 && !is_gemma()) {
      add("attention.sliding_window", config_.sliding_window);
    }
    if (architecture_ == "olmo2" && config_.sliding_window > 0) {
      writer_.add("olmo2.attention.sliding_window_pattern", config_.sliding_layers);
    }
    for (const SafetensorsEntry& entry : parse_safetensors_header(file_.bytes(), file_.path())) {
      add_tensor(entry);
    }
    return writer_.bytes();
  }

 private:
  bool is_gemma() const { return config_.norm_offset != 0; }
  bool is_interleaved() const {
    return architecture_ == "llama" || architecture_ == "granite" || architecture_ == "smollm3";
  }
  void add(const std::string& name, int value) {
    writer_.add(architecture_ + "." + name, static_cast<uint32_t>(value));
  }
  void add(const std::string& name, float value) { writer_.add(architecture_ + "." + name, value); }

  void add_scaling() {
    RopeScaling& scaling = config_.rope_scaling;
    if (!scaling.divisors.empty()) {
      add("rope.scaling.original_context_length", scaling.original_max_position_embeddings);
      add("rope.scaling.attn_factor", static_cast<float>(scaling.attention_factor));
      add_divisors("rope_factors_short.weight", scaling.divisors);
      add_divisors("rope_factors_long.weight", scaling.long_divisors);
    }
    if (scaling.kind == "linear") add("rope.scaling.factor", static_cast<float>(scaling.factor));
    if (scaling.kind == "yarn") {
      writer_.add(architecture_ + ".rope.scaling.type", std::string("yarn"));
      add("rope.scaling.factor", static_cast<float>(scaling.factor));
      add("rope.scaling.original_context_length", scaling.original_max_position_embeddings);
    } else if (scaling.kind == "llama3") {
      const std::vector<double> scaled = rope_frequencies(config_, 1).inverse;
      scaling.kind = "default";
      const std::vector<double> plain = rope_frequencies(config_, 1).inverse;
      std::vector<double> divisors;
      for (size_t i = 0; i < plain.size(); ++i) divisors.push_back(plain[i] / scaled[i]);
      add_divisors("rope_freqs.weight", divisors);
    }
  }
  void add_divisors(const std::string& name, const std::vector<double>& divisors) {
    const std::vector<float> floats(divisors.begin(), divisors.end());
    writer_.tensor(name, kF32, {std::ssize(floats)},
                   {reinterpret_cast<const char*>(floats.data()), floats.size() * 4});
  }

  void add_tensor(const SafetensorsEntry& entry) {
    std::string bytes(reinterpret_cast<const char*>(file_.bytes().data()) + entry.begin,
                      entry.end - entry.begin);
    uint32_t type = entry.dtype == DType::kFloat32   ? kF32
                    : entry.dtype == DType::kFloat16 ? kF16
                                                     : kBF16;
    const bool is_offset = entry.shape.size() == 1 && is_gemma();
    if (is_offset || (entry.shape.size() == 2 && matrices_ != Matrices::kAsTheyAre)) {
      std::vector<float> numbers(bytes.size() / size_of(*entry.dtype));
      read_elements(
          {.data = bytes.data(), .dtype = *entry.dtype, .rows = 1, .cols = std::ssize(numbers)}, 0,
          0, std::ssize(numbers), DType::kFloat32, numbers.data());
      for (float& number : numbers) number += is_offset ? config_.norm_offset : 0;
      if (is_offset) {
        bytes.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
      } else {
        bytes = quantised(numbers);
        if (matrices_ == Matrices::kDecoded) bytes = decoded(bytes);
      }
      type = matrices_ == Matrices::kCoded && !is_offset ? kQ8_0 : kF32;
    }
    const bool is_q_or_k = entry.name.find("q_proj") != entry.name.npos ||
                           entry.name.find("k_proj") != entry.name.npos;
    if (is_q_or_k && is_interleaved()) {
      bytes = interleaved(bytes, entry.shape[0], config_.head_dim);
    }
    const bool has_post_norms = is_gemma() || architecture_ == "olmo2";
    writer_.tensor(gguf_tensor_name(entry.name, has_post_norms), type, entry.shape, bytes);
  }

  ModelConfig config_;
  MappedFile file_;
  Matrices matrices_;
  std::string architecture_;
  GgufWriter writer_;
};

std::string write_gguf(const TempDir& dir, const std::string& name, Matrices matrices) {
  return dir.write(name + std::to_string(static_cast<int>(matrices)),
                   Converter(golden_dir(name), matrices).bytes());
}

Rows compute(ModelRig& rig) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(i * 37 % 380);
  Rows rows = rig.step({{0, ids}})[0];
  rows.push_back(rig.step({{0, {3}}})[0][0]);
  return rows;
}

void expect_near(const Rows& rows, const Rows& expected, float tolerance) {
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t v = 0; v < rows[i].size(); ++v) {
      ASSERT_NEAR(rows[i][v], expected[i][v], tolerance) << "row " << i << ", token " << v;
    }
  }
}

class GgufOfAFolder : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufOfAFolder, ComputesWhatTheFolderDoes) {
  const std::string name = GetParam();
  const TempDir dir;
  const std::string file = write_gguf(dir, name, Matrices::kAsTheyAre);
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    ModelRig expected(golden_dir(name), DType::kFloat32, backend.make(2), 16);
    ModelRig rig(file, DType::kFloat32, backend.make(2), 16);
    // Divisors are float32 in the file, and double in the folder or computed so.
    const bool has_divisors = name == "llama3" || name.starts_with("phi3");
    const bool is_exact = backend.is_deterministic && !has_divisors;
    expect_near(compute(rig), compute(expected), is_exact ? 0 : 1e-3f);
    EXPECT_EQ(rig.model().num_parameters(), expected.model().num_parameters());
  }
}

// Rows are whole blocks.
class QuantisedGgufOfAFolder : public GgufOfAFolder {};

TEST_P(QuantisedGgufOfAFolder, ComputesWhatTheDecodedNumbersDo) {
  const TempDir dir;
  const std::string coded = write_gguf(dir, GetParam(), Matrices::kCoded);
  const std::string plain = write_gguf(dir, GetParam(), Matrices::kDecoded);
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      ModelRig expected(plain, dtype, backend.make(2), 16);
      const Rows rows = compute(expected);
      const float tolerance =
          dtype == DType::kFloat32 ? 1e-3f : 0.6f;  // of logits that spread by 3
      ModelRig decoded(coded, dtype, backend.make(2), 16, {.keeps_codes = false});
      expect_near(compute(decoded), rows, backend.is_deterministic ? 0 : tolerance);
      ModelRig rig(coded, dtype, backend.make(2), 16);
      expect_near(compute(rig), rows, tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufOfAFolder,
                         ::testing::Values("llama2", "llama3", "llama_biases", "qwen2_tied",
                                           "qwen3_yarn", "gemma2", "gemma3", "phi3", "phi3_long",
                                           "granite", "smollm3", "olmo2", "olmo3", "glm4"));
INSTANTIATE_TEST_SUITE_P(All, QuantisedGgufOfAFolder,
                         ::testing::Values("llama2", "llama3", "llama_biases", "qwen2_tied",
                                           "qwen3_yarn"));

// Logits of every rank, and the layouts of its weights.
std::vector<Rows> compute_by_ranks(const std::string& file, int world_size, bool keeps_codes,
                                   std::vector<std::vector<LayoutUse>>* layouts = nullptr) {
  const auto group = make_communicator_group("cpu", world_size);
  std::vector<Rows> results(static_cast<size_t>(world_size));
  if (layouts != nullptr) layouts->resize(results.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto backend = make_cpu_backend(1);
      group->join(rank, *backend);
      ModelRig rig(file, DType::kFloat32, std::move(backend), 16, {.keeps_codes = keeps_codes});
      results[static_cast<size_t>(rank)] = compute(rig);
      if (layouts != nullptr) (*layouts)[static_cast<size_t>(rank)] = rig.model().weight_layouts();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

// As files of before April 2024 have them.
TEST(GgufOfAMixtral, EachExpertMayBeATensorOfItsOwn) {
  const std::string path = golden_dir("gguf_mixtral");
  const Gguf stacked(path);
  GgufWriter writer;
  writer.add("general.architecture", std::string("llama"));
  for (const std::string key :
       {"llama.block_count", "llama.context_length", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
        "llama.expert_count", "llama.expert_used_count"}) {
    writer.add(key, static_cast<uint32_t>(stacked.integer(key, 1, 1 << 20).value()));
  }
  for (const std::string key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
    writer.add(key, static_cast<float>(stacked.number(key, 0, 1e9).value()));
  }
  int num_experts = 0;
  for (const GgufTensor& tensor : stacked.tensors()) {
    const std::string_view bytes(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
    const size_t end = tensor.name.find("_exps.weight");
    if (end == tensor.name.npos) {
      writer.tensor(tensor.name, tensor.type, tensor.shape, bytes);
      continue;
    }
    const size_t size = bytes.size() / static_cast<size_t>(tensor.shape[0]);
    for (int64_t i = 0; i < tensor.shape[0]; ++i, ++num_experts) {
      writer.tensor(std::string(tensor.name.substr(0, end)) + "." + std::to_string(i) + ".weight",
                    tensor.type, {tensor.shape[1], tensor.shape[2]},
                    bytes.substr(static_cast<size_t>(i) * size, size));
    }
  }
  EXPECT_EQ(num_experts, 2 * 3 * 4);
  const TempDir dir;
  const std::string old = dir.write("old.gguf", writer.bytes());
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    ModelRig expected(path, DType::kFloat32, backend.make(2), 16);
    ModelRig rig(old, DType::kFloat32, backend.make(2), 16);
    expect_near(compute(rig), compute(expected), backend.is_deterministic ? 0 : 1e-3f);
  }
}

// No converter writes them so, but a file may have them.
TEST(GgufOfGptOss, BiasesOfExpertsMayBeQuantised) {
  const std::string path = golden_dir("gguf_gpt_oss");
  const Gguf file(path);
  const std::byte* const begin = file.parts()[0].bytes().data();
  std::string coded = read_text_file(path), plain = coded;
  int num_biases = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with("_exps.bias")) continue;
    ++num_biases;
    std::vector<float> numbers(tensor.bytes / sizeof(float));
    std::memcpy(numbers.data(), tensor.data, tensor.bytes);
    const std::string blocks = quantised(numbers);
    const auto at = static_cast<size_t>(tensor.data - begin);
    coded.replace(at, blocks.size(), blocks);
    plain.replace(at, tensor.bytes, decoded(blocks));
    // Behind the name, the number of dimensions and the two of them.
    const std::byte* const type = reinterpret_cast<const std::byte*>(tensor.name.data()) +
                                  tensor.name.size() + sizeof(uint32_t) + 2 * sizeof(uint64_t);
    std::memcpy(&coded[static_cast<size_t>(type - begin)], &kQ8_0, sizeof kQ8_0);
  }
  EXPECT_EQ(num_biases, 2 * 3);
  const TempDir dir;
  ModelRig expected(dir.write("plain.gguf", plain), DType::kFloat32, make_cpu_backend(2), 16);
  ModelRig rig(dir.write("coded.gguf", coded), DType::kFloat32, make_cpu_backend(2), 16);
  expect_near(compute(rig), compute(expected), 0);
  EXPECT_EQ(rig.model().num_parameters(), expected.model().num_parameters());
}

// A quarter of down_proj's 160 columns begins inside of a block of 32.
TEST(QuantisedGguf, RanksMayCutBlocks) {
  const TempDir dir;
  const std::string file = write_gguf(dir, "llama2", Matrices::kCoded);
  const auto coded = compute_by_ranks(file, 4, true), decoded = compute_by_ranks(file, 4, false);
  const auto plain = compute_by_ranks(write_gguf(dir, "llama2", Matrices::kDecoded), 4, true);
  for (size_t rank = 0; rank < plain.size(); ++rank) {
    expect_near(decoded[rank], plain[rank], 0);
    expect_near(coded[rank], plain[rank], 1e-3f);
  }
}

void expect_all_super(const std::vector<LayoutUse>& uses) {
  EXPECT_FALSE(uses.empty());
  for (const LayoutUse& use : uses) EXPECT_EQ(use.layout, WeightLayout::kSuper);
}

TEST(KQuants, ComputeWhatTheDecodedNumbersDo) {
  const TempDir dir;
  const std::string file = dir.write("k_quants.gguf", testing::k_quants_gguf());
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      ModelRig decoded(file, dtype, backend.make(2), 16, {.keeps_codes = false});
      ModelRig rig(file, dtype, backend.make(2), 16);
      // Of logits that spread by 1.
      expect_near(compute(rig), compute(decoded), dtype == DType::kFloat32 ? 1e-3f : 0.3f);
    }
  }
  ModelRig rig(file, DType::kBFloat16, make_cpu_backend(1), 16);
  expect_all_super(rig.model().weight_layouts());
}

// Shares that begin within blocks of 256 columns and on them.
TEST(KQuants, RanksKeepTheirSharesInCodes) {
  const TempDir dir;
  const std::string file = dir.write("k_quants.gguf", testing::k_quants_gguf());
  ModelRig alone(file, DType::kFloat32, make_cpu_backend(2), 16);
  const Rows expected = compute(alone);
  for (const int world_size : {2, 4}) {
    SCOPED_TRACE(world_size);
    std::vector<std::vector<LayoutUse>> layouts;
    for (const Rows& rows : compute_by_ranks(file, world_size, true, &layouts)) {
      expect_near(rows, expected, 1e-3f);
    }
    for (const std::vector<LayoutUse>& uses : layouts) expect_all_super(uses);
  }
}

}  // namespace
}  // namespace nanovllm
