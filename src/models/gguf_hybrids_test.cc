// GGUF files of hybrids, which llama.cpp's converter wrote: they compute what their folders do, and
// what does not fit together in them is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend_cases.h"
#include "backend/registry.h"
#include "io/file.h"
#include "io/gguf_testing.h"
#include "io/safetensors.h"
#include "io/testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::GgufWriter;
using testing::golden_dir;
using testing::ModelRig;
using testing::Rows;
using testing::TempDir;

// A prompt over two chunks of a recurrent layer, and a token.
Rows compute_hybrid(ModelRig& rig) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(i * 37 % 310);
  Rows rows = rig.step({{0, ids}})[0];
  rows.push_back(rig.step({{0, {3}}})[0][0]);
  return rows;
}

void expect_close(const Rows& rows, const Rows& expected) {
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t v = 0; v < rows[i].size(); ++v) {
      ASSERT_NEAR(rows[i][v], expected[i][v], 1e-4) << "row " << i << ", token " << v;
    }
  }
}

struct HybridFile {
  const char* file;
  const char* folder;
};

class GgufOfAHybrid : public ::testing::TestWithParam<HybridFile> {};

// Of decays, the file has what the converter's exp() gave; and value heads may be in another order.
TEST_P(GgufOfAHybrid, ComputesWhatTheFolderDoes) {
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    ModelRig expected(golden_dir(GetParam().folder), DType::kFloat32, backend.make(2), 16);
    ModelRig rig(golden_dir(GetParam().file), DType::kFloat32, backend.make(2), 16);
    expect_close(compute_hybrid(rig), compute_hybrid(expected));
    EXPECT_EQ(rig.model().num_parameters(), expected.model().num_parameters());
    EXPECT_EQ(rig.model().num_active_parameters(), expected.model().num_active_parameters());
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufOfAHybrid,
                         ::testing::Values(HybridFile{"gguf_qwen35moe", "qwen3_5_moe"},
                                           HybridFile{"gguf_qwen3next", "qwen3_next"}),
                         [](const auto& test) { return std::string(test.param.file); });

// The keys of a hybrid that llama.cpp's converter wrote; `change` may leave some out, by returning
// false, or add others.
using ChangeKey = std::function<bool(GgufWriter&, std::string_view key)>;
void copy_keys(const Gguf& from, GgufWriter& to, const ChangeKey& change) {
  for (const std::string_view key : from.keys()) {
    if (key.starts_with("tokenizer.") || !change(to, key)) continue;
    if (key == "general.architecture") {
      to.add(key, std::string(*from.string(key)));
    } else if (key.ends_with(".freq_base") || key.ends_with("_epsilon")) {
      to.add(key, static_cast<float>(*from.number(key, 0, 1e9)));
    } else if (key.ends_with(".recurrent_layers")) {
      to.add(key, *from.booleans(key));
    } else if (!key.starts_with("general.") && !key.ends_with("_sections")) {
      to.add(key, static_cast<uint32_t>(*from.integer(key, 0, 1 << 20)));
    }
  }
}

std::string_view bytes_of(const GgufTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.bytes};
}

// As files of 2025 have them: attn_qkv and attn_gate are one ssm_in, like the folder's.
TEST(GgufOfQwen3Next, ProjectionsMayBeOneInterleavedByKeyHead) {
  const Gguf now(golden_dir("gguf_qwen3next"));
  GgufWriter writer;
  copy_keys(now, writer, [](GgufWriter&, std::string_view) { return true; });
  for (const GgufTensor& tensor : now.tensors()) {
    const bool is_split =
        tensor.name.ends_with(".attn_qkv.weight") || tensor.name.ends_with(".attn_gate.weight");
    if (!is_split) writer.tensor(tensor.name, tensor.type, tensor.shape, bytes_of(tensor));
  }
  const MappedFile folder(golden_dir("qwen3_next") + "/model.safetensors");
  int num_fused = 0;
  for (const SafetensorsEntry& entry : parse_safetensors_header(folder.bytes(), folder.path())) {
    int layer = 0;
    if (!entry.name.ends_with(".in_proj_qkvz.weight")) continue;
    ASSERT_EQ(std::sscanf(entry.name.c_str(), "model.layers.%d.", &layer), 1);
    const auto* data = reinterpret_cast<const char*>(folder.bytes().data());
    constexpr uint32_t kBFloat16Tensor = 30;
    writer.tensor(fmt::format("blk.{}.ssm_in.weight", layer), kBFloat16Tensor, entry.shape,
                  {data + entry.begin, data + entry.end});
    ++num_fused;
  }
  EXPECT_EQ(num_fused, 3);
  const TempDir dir;
  const std::string old = dir.write("old.gguf", writer.bytes());
  for (const test::BackendCase& backend : test::backends(test::SanitizedIsas::kLast)) {
    SCOPED_TRACE(backend.name);
    ModelRig expected(golden_dir("gguf_qwen3next"), DType::kFloat32, backend.make(2), 16);
    ModelRig rig(old, DType::kFloat32, backend.make(2), 16);
    expect_close(compute_hybrid(rig), compute_hybrid(expected));
  }
}

// The config of a file with other keys.
ModelConfig config_with(const char* file, const ChangeKey& change) {
  const Gguf gguf(golden_dir(file));
  GgufWriter writer;
  copy_keys(gguf, writer, change);
  for (const GgufTensor& tensor : gguf.tensors()) {
    writer.tensor(tensor.name, tensor.type, tensor.shape, bytes_of(tensor));
  }
  const TempDir dir;
  return load_model_config(dir.write("model.gguf", writer.bytes()));
}

TEST(HybridGguf, KeysSaySizesAndWhichLayersAreRecurrent) {
  const auto as_it_is = [](GgufWriter&, std::string_view) { return true; };
  const ModelConfig moe = config_with("gguf_qwen35moe", as_it_is);
  EXPECT_EQ(moe.architecture, "Qwen3_5MoeForCausalLM");
  EXPECT_EQ(moe.num_hidden_layers, 4);
  EXPECT_EQ(moe.num_prediction_layers, 1);
  EXPECT_EQ(moe.experts.num, 6);
  EXPECT_EQ(moe.experts.num_active, 3);
  EXPECT_EQ(moe.experts.width, 32);
  EXPECT_EQ(moe.experts.shared_width, 32);
  EXPECT_TRUE(moe.experts.renormalise);
  EXPECT_EQ(moe.rotary_dim, 8);
  EXPECT_TRUE(moe.recurrent.key_heads_take_turns);
  const ModelConfig next = config_with("gguf_qwen3next", as_it_is);
  EXPECT_EQ(next.architecture, "Qwen3NextForCausalLM");
  EXPECT_EQ(next.num_prediction_layers, 0);
  EXPECT_TRUE(next.experts.renormalise);
  EXPECT_FALSE(next.recurrent.key_heads_take_turns);
  EXPECT_EQ(next.recurrent.num_key_heads, 2);
  EXPECT_EQ(next.recurrent.num_value_heads, 6);
  const ModelConfig by_interval =
      config_with("gguf_qwen3next", [](GgufWriter& to, std::string_view key) {
        if (key.ends_with("interval")) to.add(key, uint32_t{2});
        return !key.ends_with("interval") && !key.ends_with("recurrent_layers");
      });
  EXPECT_EQ(by_interval.recurrent.layers, (std::vector<bool>{true, false, true, false}));
}

TEST(HybridGguf, WhatDoesNotFitTogetherIsRefusedInASentence) {
  const auto error_with = [](const std::string& name, auto value) {
    const std::string key = "qwen35moe." + name;
    const std::string message =
        error_of([&] {
          config_with("gguf_qwen35moe", [&](GgufWriter& to, std::string_view one) {
            if (one == key) to.add(key, value);
            return one != key;
          });
        }).what();
    const size_t end = message.find(".gguf: ");
    return end == message.npos ? message : message.substr(end + 7);
  };
  EXPECT_EQ(error_with("ssm.inner_size", uint32_t{97}),
            "qwen35moe.ssm.inner_size is 97, expected a multiple of qwen35moe.ssm.time_step_rank, "
            "which is 3");
  EXPECT_EQ(error_with("ssm.group_count", uint32_t{2}),
            "recurrent layers have 3 value heads, expected a multiple of their 2 key heads");
  EXPECT_EQ(error_with("ssm.state_size", uint32_t{20}),
            "heads of recurrent layers have 20 and 32 elements, only multiples of 8 are supported");
  EXPECT_EQ(error_with("ssm.conv_kernel", uint32_t{17}),
            "qwen35moe.ssm.conv_kernel is 17, expected an integer from 1 to 16");
  EXPECT_EQ(
      error_with("attention.recurrent_layers", std::vector<bool>{true, false}),
      "qwen35moe.attention.recurrent_layers has 2 elements, expected one for each of 4 layers");
  EXPECT_EQ(error_with("attention.recurrent_layers", std::vector<bool>(5, true)),
            "no layer is of attention, which is not supported");
  EXPECT_EQ(error_with("expert_used_count", uint32_t{7}),
            "qwen35moe.expert_used_count is 7, expected an integer from 1 to 6");
}

}  // namespace
}  // namespace nanovllm
