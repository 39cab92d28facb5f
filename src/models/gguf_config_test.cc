// What the metadata and the tensors of a GGUF file say of its model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "io/gguf_names.h"
#include "io/gguf_testing.h"
#include "io/testing.h"
#include "io/weight_store.h"
#include "models/load_config.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::GgufWriter;
using testing::TempDir;

// A model of hidden size 8, two heads of 4, a vocabulary of 3 and no layer's tensors.
class File {
 public:
  explicit File(const std::string& architecture) : architecture_(architecture) {
    writer.add("general.architecture", architecture);
  }
  template <typename T>
  File& add(const std::string& name, const T& value) {
    writer.add(architecture_ + "." + name, value);
    return *this;
  }
  File& add_sizes() {
    add("block_count", uint32_t{2}).add("context_length", uint32_t{512});
    add("embedding_length", uint32_t{8}).add("feed_forward_length", uint32_t{16});
    return add("attention.head_count", uint32_t{2});
  }
  File& add_table() {
    writer.tensor("token_embd.weight", GgufWriter::kF32, {3, 8}, std::string(96, '\0'));
    return *this;
  }
  ModelConfig config() {
    const std::string path = dir_.write("model.gguf", writer.bytes());
    return load_model_config(path);
  }
  std::string error() {
    const std::string message = error_of([&] { config(); }).what();
    const std::string path = dir_.path() + "/model.gguf: ";
    EXPECT_EQ(message.substr(0, path.size()), path);
    return message.substr(std::min(message.size(), path.size()));
  }

  GgufWriter writer;

 private:
  std::string architecture_;
  TempDir dir_;
};

TEST(GgufModel, SizesComeFromKeysAndTheVocabularyFromItsTable) {
  File file("llama");
  file.add_sizes().add_table();
  const ModelConfig config = file.config();
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.intermediate_size, 16);
  EXPECT_EQ(config.num_attention_heads, 2);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab_size, 3);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.dtype, DType::kFloat32);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
}

TEST(GgufModel, TensorsTellOfHeadsAndBiases) {
  File file("llama");
  file.add_sizes();
  file.writer.tensor("token_embd.weight", GgufWriter::kF16, {3, 8}, std::string(48, '\0'))
      .tensor("output.weight", GgufWriter::kF32, {3, 8}, std::string(96, '\0'))
      .tensor("blk.0.attn_q.bias", GgufWriter::kF32, {8}, std::string(32, '\0'))
      .tensor("blk.0.ffn_gate.bias", GgufWriter::kF32, {16}, std::string(64, '\0'));
  const ModelConfig config = file.config();
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_EQ(config.dtype, DType::kFloat16);
}

TEST(GgufModel, KeysMayGiveHeadsRotationWindowAndSampling) {
  File file("qwen3");
  file.add_sizes()
      .add("attention.key_length", uint32_t{16})
      .add("attention.value_length", uint32_t{16})
      .add("attention.head_count_kv", uint32_t{1})
      .add("attention.layer_norm_rms_epsilon", 1e-5f)
      .add("attention.sliding_window", uint32_t{64})
      .add("rope.freq_base", 1e6f)
      .add("rope.scaling.type", std::string("yarn"))
      .add("rope.scaling.factor", 4.0f)
      .add("rope.scaling.original_context_length", uint32_t{128});
  file.writer.add("general.sampling.temp", 0.5f)
      .add("general.sampling.top_k", int32_t{20})
      .add("general.sampling.top_p", 0.75f);
  file.add_table();
  const ModelConfig config = file.config();
  EXPECT_EQ(config.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 1);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.sliding_window, 64);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.rope_scaling.kind, "yarn");
  EXPECT_EQ(config.rope_scaling.factor, 4);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 128);
  EXPECT_EQ(config.rope_scaling.attention_factor, 0);
  EXPECT_EQ(config.default_sampling_params.temperature, 0.5);
  EXPECT_EQ(config.default_sampling_params.top_k, 20);
  EXPECT_EQ(config.default_sampling_params.top_p, 0.75);
}

TEST(GgufModel, WhatFilesOfGemmaLeaveOutIsKnown) {
  const auto gemma = [](const char* name, uint32_t layers, auto... more) {
    File file(name);
    file.add("block_count", layers).add("context_length", uint32_t{512});
    file.add("embedding_length", uint32_t{24}).add("feed_forward_length", uint32_t{16});
    file.add("attention.head_count", uint32_t{2}).add("attention.key_length", uint32_t{16});
    file.add("attention.value_length", uint32_t{16});
    (file.add(more.first, more.second), ...);
    file.add_table();
    return file.config();
  };
  const ModelConfig two = gemma("gemma2", 3, std::pair("attn_logit_softcapping", 4.0f));
  EXPECT_EQ(two.architecture, "Gemma2ForCausalLM");
  EXPECT_EQ(two.norm_offset, 0);  // in the weights already
  EXPECT_EQ(two.query_scalar, 16);
  EXPECT_EQ(two.attention_soft_cap, 4);
  EXPECT_EQ(two.final_soft_cap, 30);
  EXPECT_EQ(two.sliding_window, 4096);
  EXPECT_EQ(two.sliding_layers, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(gemma("gemma2", 46).query_scalar, 12);
  EXPECT_EQ(gemma("gemma3", 46).query_scalar, 16);
  EXPECT_EQ(gemma("gemma3", 62).query_scalar, 12);
  EXPECT_EQ(gemma("gemma3", 2, std::pair("attention.scale", 0.5f)).query_scalar, 4);
  const ModelConfig three = gemma("gemma3", 7, std::pair("attention.sliding_window", 64u),
                                  std::pair("rope.scaling.factor", 8.0f));
  EXPECT_EQ(three.hidden_act, "gelu_pytorch_tanh");
  EXPECT_EQ(three.attention_soft_cap, 0);
  EXPECT_EQ(three.final_soft_cap, 0);
  EXPECT_EQ(three.sliding_window, 64);
  EXPECT_EQ(three.sliding_layers, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_EQ(three.rope_theta, 1e6);
  EXPECT_EQ(three.window_rope_theta, 1e4);
  EXPECT_EQ(three.rope_scaling.kind, "linear");
  EXPECT_EQ(three.max_context_length(), 512);
}

TEST(GgufModel, AGranitesFactorsAreKeys) {
  File file("granite");
  file.add_sizes().add_table();
  EXPECT_EQ(file.config().query_scalar, 0);
  EXPECT_EQ(file.config().logit_scale, 1);
  file.add("attention.scale", 0.5f).add("embedding_scale", 12.0f);
  file.add("residual_scale", 0.25f).add("logit_scale", 8.0f);
  const ModelConfig config = file.config();
  EXPECT_EQ(config.query_scalar, 4);
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.residual_scale, 0.25f);
  EXPECT_EQ(config.logit_scale, 0.125f);
}

TEST(GgufModel, AnOlmo2WithAWindowIsAnOlmo3) {
  File two("olmo2");
  two.add_sizes().add_table();
  EXPECT_EQ(two.config().architecture, "Olmo2ForCausalLM");
  File three("olmo2");
  three.add_sizes().add("attention.sliding_window", uint32_t{16}).add("rope.freq_base", 5e5f);
  three.add_table();
  EXPECT_EQ(three.config().architecture, "Olmo3ForCausalLM");
  EXPECT_EQ(three.config().window_rope_theta, 5e5);
  EXPECT_EQ(three.config().sliding_layers, (std::vector<bool>{true, true}));
  three.add("attention.sliding_window_pattern", std::vector<bool>{false, true});
  EXPECT_EQ(three.config().sliding_layers, (std::vector<bool>{false, true}));
}

TEST(GgufModel, PartsOfHeadsTurnAndDivisorsAreForThese) {
  File file("phi3");
  file.add_sizes().add("rope.dimension_count", uint32_t{2}).add_table();
  const float divisors[] = {3, 5};
  for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"}) {
    file.writer.tensor(name, GgufWriter::kF32, {1}, {reinterpret_cast<const char*>(divisors), 4});
  }
  EXPECT_EQ(file.config().rotary_dim, 2);
  EXPECT_EQ(file.config().rope_scaling.long_divisors, std::vector<double>{3});
}

// As llama.cpp reads it: what has a factor and no kind is linear, and files of 2023 call it
// otherwise.
TEST(GgufModel, AFactorWithoutAKindOfScalingIsLinear) {
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    File file("llama");
    file.add_sizes().add(key, 2.0f).add_table();
    const RopeScaling scaling = file.config().rope_scaling;
    EXPECT_EQ(scaling.kind, "linear") << key;
    EXPECT_EQ(scaling.factor, 2) << key;
  }
  File none("llama");
  none.add_sizes().add("rope.scaling.type", std::string("none")).add("rope.scaling.factor", 2.0f);
  none.add_table();
  EXPECT_EQ(none.config().rope_scaling.kind, "default");
}

TEST(GgufModel, AWindowOrAFactorOf0IsNone) {
  File file("llama");
  file.add_sizes().add("attention.sliding_window", uint32_t{0}).add("rope.scaling.factor", 0.0f);
  file.add_table();
  const ModelConfig config = file.config();
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.rope_scaling.factor, 1);
}

TEST(GgufModel, DivisorsOfFrequenciesAreTensors) {
  const auto with = [](std::vector<float> divisors) {
    auto file = std::make_unique<File>("llama");
    file->add_sizes().add_table();
    const auto* bytes = reinterpret_cast<const char*>(divisors.data());
    file->writer.tensor("rope_freqs.weight", GgufWriter::kF32,
                        {static_cast<int64_t>(divisors.size())},
                        {bytes, divisors.size() * sizeof(float)});
    return file;
  };
  EXPECT_EQ(with({1, 8})->config().rope_scaling.divisors, (std::vector<double>{1, 8}));
  for (const std::vector<float>& wrong :
       {std::vector<float>{1}, std::vector<float>{1, 2, 3}, std::vector<float>{1, 0},
        std::vector<float>{1, -1}, std::vector<float>{1, std::numeric_limits<float>::infinity()}}) {
    EXPECT_EQ(with(wrong)->error(), "tensor rope_freqs.weight is not 2 float32 above 0");
  }
}

TEST(GgufModel, RefusesWhatItCannotCompute) {
  const auto error_with = [](const std::function<void(File&)>& change,
                             const std::string& architecture = "llama") {
    File file(architecture);
    change(file);
    file.add_sizes().add_table();
    return file.error();
  };
  EXPECT_EQ(error_with([](File&) {}, "gemma9"),
            "general.architecture gemma9 is not supported; supported are gemma2, gemma3, glm4, "
            "glm4moe, gpt-oss, granite, llama, mistral3, olmo2, olmoe, phi3, qwen2, qwen2moe, "
            "qwen3, qwen35, qwen35moe, qwen3moe, qwen3next, smollm3");
  EXPECT_EQ(error_with([](File&) {}, "qwen35"), "qwen35.ssm.group_count is missing");
  EXPECT_EQ(error_with([](File&) {}, "gemma4"),
            "general.architecture gemma4 is not supported yet: it comes in a later version");
  EXPECT_EQ(error_with([](File&) {}, "clip"),
            "the projector of a multimodal model; expected the model itself");
  const auto of_type = [](const char* type) {
    return [type](File& file) { file.writer.add("general.type", std::string(type)); };
  };
  EXPECT_EQ(error_with(of_type("adapter")), "a LoRA adapter; expected the model itself");
  EXPECT_EQ(error_with(of_type("imatrix")), "an importance matrix; expected the model itself");
  EXPECT_EQ(error_with([](File& file) { file.add("nextn_predict_layers", uint32_t{1}); }, "qwen35"),
            "layers of multi-token prediction; expected the model itself");
  EXPECT_EQ(error_with([](File& file) { file.add("expert_count", uint32_t{8}); }, "qwen3"),
            "qwen3.expert_count is 8, which is not supported");
  EXPECT_EQ(error_with([](File& file) { file.add("rope.dimension_count", uint32_t{2}); }),
            "llama.rope.dimension_count is 2, only the 4 of a whole head is supported");
  EXPECT_EQ(error_with(
                [](File& file) {
                  file.add("rope.dimension_sections", std::vector<int32_t>{8, 12, 12, 0});
                },
                "glm4"),
            "has glm4.rope.dimension_sections, a rotation for images, which is not supported");
  EXPECT_EQ(error_with([](File& file) { file.add("residual_scale", 0.5f); }),
            "llama.residual_scale is 0.5, which is not supported");
  EXPECT_EQ(error_with([](File& file) { file.add("attention.scale", 0.5f); }),
            "llama.attention.scale is 0.5, which is not supported");
  EXPECT_EQ(error_with([](File& file) { file.add("rope.dimension_count", uint32_t{3}); }, "glm4"),
            "glm4.rope.dimension_count is 3, only the 4 of a whole head is supported");
  EXPECT_EQ(error_with(
                [](File& file) {
                  file.add("attention.sliding_window", uint32_t{8});
                  file.add("attention.sliding_window_pattern", std::vector<bool>{true});
                },
                "olmo2"),
            "olmo2.attention.sliding_window_pattern is an array of 1 booleans, expected true or "
            "false for every layer");
  EXPECT_EQ(error_with([](File& file) { file.add("vocab_size", uint32_t{4}); }),
            "llama.vocab_size is 4, but token_embd.weight has 3 rows");
}

TEST(GgufModel, ALlamaWithAWindowIsAMistral) {
  File window("llama");
  window.add_sizes().add("attention.sliding_window", uint32_t{64}).add_table();
  EXPECT_EQ(window.config().architecture, "MistralForCausalLM");
  EXPECT_EQ(window.config().sliding_window, 64);
  File named("mistral3");
  named.add_sizes().add_table();
  EXPECT_EQ(named.config().architecture, "MistralForCausalLM");
  EXPECT_EQ(named.config().sliding_window, 0);
  File experts("llama");
  experts.add_sizes().add("expert_count", uint32_t{8}).add("expert_used_count", uint32_t{2});
  experts.add("attention.sliding_window", uint32_t{64}).add_table();
  EXPECT_EQ(experts.config().architecture, "MixtralForCausalLM");
}

TEST(GgufModel, ALlamaWithExpertsIsAMixtral) {
  File file("llama");
  file.add_sizes().add("expert_count", uint32_t{8}).add("expert_used_count", uint32_t{2});
  file.writer.tensor("blk.1.ffn_gate_inp.weight", GgufWriter::kF32, {8, 8}, std::string(256, '\0'));
  const ModelConfig config = file.add_table().config();
  EXPECT_EQ(config.architecture, "MixtralForCausalLM");
  EXPECT_EQ(config.experts.num, 8);
  EXPECT_EQ(config.experts.num_active, 2);
  EXPECT_EQ(config.experts.width, 16);
  EXPECT_EQ(config.experts.shared_width, 0);
  EXPECT_TRUE(config.experts.renormalise);
  EXPECT_EQ(config.experts.layers, (std::vector<bool>{false, true}));
}

TEST(GgufModel, ExpertsThatDoNotFitTogetherAreRefused) {
  File file("qwen3moe");
  file.add_sizes().add("expert_count", uint32_t{8}).add("expert_used_count", uint32_t{3});
  file.add("expert_group_count", uint32_t{4}).add("expert_group_used_count", uint32_t{1});
  EXPECT_EQ(file.add_table().error(), "3 active of 8 experts in 1 of 4 groups do not fit together");
}

TEST(GgufModel, RefusesSizesThatAreMissingOrWrong) {
  const auto error_with = [](const char* name, auto value) {
    File file("llama");
    file.add(name, value);
    return file.error();
  };
  EXPECT_EQ(error_with("embedding_length", uint32_t{8}), "llama.feed_forward_length is missing");
  EXPECT_NE(error_with("embedding_length", uint32_t{0}).find("llama.embedding_length"),
            std::string::npos);
  File layers("llama");
  layers.add("embedding_length", uint32_t{8}).add("feed_forward_length", uint32_t{8});
  layers.add("block_count", uint32_t{1} << 31);
  EXPECT_NE(layers.error().find("llama.block_count"), std::string::npos);
  File heads("llama");
  heads.add("embedding_length", uint32_t{8}).add("feed_forward_length", uint32_t{8});
  heads.add("block_count", uint32_t{1}).add("attention.head_count", uint32_t{0});
  EXPECT_NE(heads.error().find("llama.attention.head_count"), std::string::npos);
  File table("llama");
  table.add_sizes();
  EXPECT_EQ(table.error(), "the matrix token_embd.weight is missing");
}

TEST(GgufModel, TensorsHaveGgufsNamesInTheFile) {
  EXPECT_EQ(gguf_tensor_name("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
  EXPECT_EQ(gguf_tensor_name("model.layers.0.self_attn.q_norm.weight"), "blk.0.attn_q_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.post_attention_layernorm.weight"),
            "blk.1.ffn_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.post_attention_layernorm.weight", true),
            "blk.1.post_attention_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.pre_feedforward_layernorm.weight", true),
            "blk.1.ffn_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.post_feedforward_layernorm.weight", true),
            "blk.1.post_ffw_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.post_self_attn_layernorm.weight"),
            "blk.1.post_attention_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.self_attn.qkv_proj.weight"), "blk.1.attn_qkv.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.mlp.gate_up_proj.weight"), "blk.1.ffn_up.weight");
  EXPECT_EQ(gguf_tensor_name("lm_head.weight"), "output.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.mlp.experts.up_proj.weight"),
            "blk.1.ffn_up_exps.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.block_sparse_moe.experts.12.w2.weight"),
            "blk.1.ffn_down.12.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.1.mlp.experts.x.up_proj.weight"),
            "model.layers.1.mlp.experts.x.up_proj.weight");
  EXPECT_EQ(gguf_tensor_name("something.else"), "something.else");
}

TEST(GgufModel, AScaleThatIsNoNumberIsTracedToFileTensorAndBlock) {
  const TempDir dir;
  File file("llama");
  file.add_sizes().add_table();
  std::string rows(2 * 34, '\0');
  rows.replace(34, 2, "\x01\x7e", 2);
  file.writer.tensor("lm.w", GgufWriter::kQ8_0, {2, 32}, rows);
  const std::string path = dir.write("model.gguf", file.writer.bytes());
  const WeightStore weights(path);
  std::vector<float> row(32);
  const MatrixDecoder& decoder = *weights.get("lm.w", {2, 32}).decoder;
  decoder.decode(0, 0, 32, row.data());
  EXPECT_EQ(error_of([&] { decoder.decode(1, 0, 32, row.data()); }).what(),
            path +
                ": tensor lm.w: block 0 of row 1 has a scale that is no number; download the "
                "file again");
}

TEST(GgufModel, OnlyRowsOfQueriesAndKeysAreInterleaved) {
  for (const auto& [architecture, head] : {std::pair("llama", 4), std::pair("qwen2", 0)}) {
    TempDir dir;
    File file(architecture);
    file.add_sizes().add_table();
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
      file.writer.tensor(name, GgufWriter::kF32, {8, 8}, std::string(256, '\0'));
    }
    const std::string path = dir.write("model.gguf", file.writer.bytes());
    const WeightStore weights(path, {}, load_model_config(path).gguf);
    const auto interleaved = [&](const char* name) {
      return weights.get(fmt::format("model.layers.0.self_attn.{}.weight", name), {8, 8})
          .interleaved_head;
    };
    EXPECT_EQ(interleaved("q_proj"), head);
    EXPECT_EQ(interleaved("k_proj"), head);
    EXPECT_EQ(interleaved("v_proj"), 0);
  }
}

}  // namespace
}  // namespace nanovllm
