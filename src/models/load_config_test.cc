#include "models/load_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "io/reference_data_testing.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::TempDir;

ModelConfig load_json(const std::string& config, const std::string& generation_config = "") {
  const TempDir dir;
  dir.write("config.json", config);
  if (!generation_config.empty()) dir.write("generation_config.json", generation_config);
  return load_model_config(dir.path());
}

std::string message_for(const std::string& config, const std::string& generation_config = "") {
  return error_of([&] { load_json(config, generation_config); }).what();
}

constexpr const char* kTransformers4 = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 3072,
  "intermediate_size": 8192, "num_attention_heads": 24, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "torch_dtype": "float16",
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": true, "eos_token_id": [128001, 128008], "bos_token_id": 128000})";

TEST(ModelConfig, ReadsTheLayoutOfTransformers4) {
  const ModelConfig config = load_json(kTransformers4);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.vocab_size, 128256);
  EXPECT_EQ(config.hidden_size, 3072);
  EXPECT_EQ(config.intermediate_size, 8192);
  EXPECT_EQ(config.num_hidden_layers, 28);
  EXPECT_EQ(config.num_attention_heads, 24);
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling.kind, "llama3");
  EXPECT_EQ(config.rope_scaling.factor, 32.0);
  EXPECT_EQ(config.rope_scaling.low_freq_factor, 1.0);
  EXPECT_EQ(config.rope_scaling.high_freq_factor, 4.0);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 8192);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, DType::kFloat16);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{128001, 128008}));
  EXPECT_EQ(config.max_context_length(), 131072);
}

TEST(ModelConfig, ReadsTheLayoutOfTransformers5) {
  const ModelConfig config = load_json(R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
    "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "layer_types": ["full_attention", "full_attention"],
    "sliding_window": null, "use_sliding_window": false,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0,
                        "original_max_position_embeddings": 2048, "beta_fast": 16}})");
  EXPECT_EQ(config.dtype, DType::kFloat32);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.rope_scaling.kind, "yarn");
  EXPECT_EQ(config.rope_scaling.factor, 4.0);
  EXPECT_EQ(config.rope_scaling.beta_fast, 16.0);
  EXPECT_EQ(config.rope_scaling.attention_factor, 0.0);
  EXPECT_EQ(config.head_dim, 128);  // Qwen3's default, whatever the hidden size
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.max_context_length(), 8192);
}

TEST(ModelConfig, ReadsOldRopeScalingAndItsDefaults) {
  const ModelConfig linear = load_json(
      R"({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}})");
  EXPECT_EQ(linear.rope_scaling.kind, "linear");
  EXPECT_EQ(linear.max_context_length(), 8192);
  const ModelConfig plain = load_json(R"({"rope_scaling": null})");
  EXPECT_EQ(plain.rope_scaling.kind, "default");
  EXPECT_EQ(plain.rope_theta, 10000.0);
  const ModelConfig partial = load_json(R"({"partial_rotary_factor": 0.5})");
  EXPECT_EQ(partial.rope_scaling.kind, "partial_rotary_factor");
  const ModelConfig mscale =
      load_json(R"({"max_position_embeddings": 100, "rope_scaling": {"type": "yarn", "factor": 4,
               "mscale": 1.0, "mscale_all_dim": 1.0}})");
  EXPECT_DOUBLE_EQ(mscale.rope_scaling.attention_factor, 1.0);
}

TEST(ModelConfig, RopeScalingGoesBeforeRopeParameters) {
  const auto load_rope = [](const std::string& scaling, const std::string& more = "") {
    return load_json(R"({"max_position_embeddings": 4096, "rope_parameters": {"rope_theta": 1e6,
                    "rope_type": "llama3", "factor": 8, "low_freq_factor": 2}, "rope_scaling": )" +
                     scaling + more + "}");
  };
  const ModelConfig yarn = load_rope(R"({"rope_type": "yarn", "factor": 4})");
  EXPECT_EQ(yarn.rope_scaling.kind, "yarn");
  EXPECT_EQ(yarn.rope_scaling.factor, 4);
  EXPECT_EQ(yarn.rope_scaling.low_freq_factor, RopeScaling().low_freq_factor);
  EXPECT_EQ(yarn.rope_theta, 1e6);
  EXPECT_EQ(yarn.max_context_length(), 16384);
  const std::string linear = R"({"type": "linear", "factor": 2})";
  EXPECT_EQ(load_rope(linear, R"(, "rope_theta": 5e5)").rope_theta, 5e5);
  EXPECT_EQ(
      load_rope(R"({"type": "linear", "factor": 2, "rope_theta": 7e5})", R"(, "rope_theta": 5e5)")
          .rope_theta,
      7e5);
  EXPECT_EQ(load_rope(R"({"type": "default"})").rope_scaling.kind, "default");
  for (const char* nothing : {"null", "{}"}) {
    const ModelConfig parameters = load_rope(nothing, R"(, "rope_theta": 5e5)");
    EXPECT_EQ(parameters.rope_scaling.kind, "llama3") << nothing;
    EXPECT_EQ(parameters.rope_scaling.factor, 8) << nothing;
    EXPECT_EQ(parameters.rope_theta, 1e6) << nothing;
  }
}

TEST(ModelConfig, ScalingsThatWouldHaveNoEffectAreRefused) {
  const auto with = [](const std::string& scaling) {
    return R"({"max_position_embeddings": 4096, "rope_scaling": )" + scaling + "}";
  };
  for (const char* scaling :
       {R"({"factor": 2})", R"({"rope_typ": "yarn", "factor": 2})",
        R"({"type": "default", "factor": 2})", R"({"type": "linear"})", R"({"type": "llama3"})",
        R"({"type": "yarn", "facto": 2})", R"({"rope_typ": "yarn"})", R"({"beta_fast": 3})",
        R"({"rope_theta": 5e5, "original_max_position_embeddings": 64})"}) {
    EXPECT_NE(message_for(with(scaling)).find("config.json, rope_scaling: would have no effect"),
              std::string::npos)
        << scaling;
  }
  for (const char* scaling :
       {R"({"type": "default", "factor": 1})", R"({"type": "linear", "factor": 1})",
        R"({"rope_theta": 5e5})", R"({"factor": 1, "type": null, "beta_fast": null})",
        R"({"type": "yarn", "original_max_position_embeddings": 2048})"}) {
    EXPECT_NO_THROW(load_json(with(scaling))) << scaling;
  }
  EXPECT_EQ(
      load_json(with(R"({"full_attention": {"type": "linear", "factor": 2}})")).rope_scaling.kind,
      "full_attention");
}

TEST(ModelConfig, WindowsHoldForTheLayersThatHaveThem) {
  const ModelConfig all = load_json(R"({"num_hidden_layers": 3, "sliding_window": 16})");
  EXPECT_EQ(all.sliding_window, 16);
  EXPECT_TRUE(all.sliding_layers.empty());
  EXPECT_EQ(load_json(R"({"model_type": "mistral"})").sliding_window, 4096);
  EXPECT_EQ(load_json(R"({"model_type": "mistral", "sliding_window": null})").sliding_window, 0);
  EXPECT_EQ(load_json(R"({"model_type": "llama"})").sliding_window, 0);
  const ModelConfig off =
      load_json(R"({"num_hidden_layers": 3, "sliding_window": 16, "use_sliding_window": false})");
  EXPECT_EQ(off.sliding_window, 0);
  const ModelConfig qwen =
      load_json(R"({"model_type": "qwen2", "num_hidden_layers": 30, "sliding_window": 16})");
  EXPECT_EQ(qwen.sliding_window, 0);
  const ModelConfig qwen_upper =
      load_json(R"({"model_type": "qwen2", "num_hidden_layers": 30, "sliding_window": 16,
               "use_sliding_window": true})");
  EXPECT_EQ(std::count(qwen_upper.sliding_layers.begin(), qwen_upper.sliding_layers.end(), true),
            2);
  const ModelConfig upper =
      load_json(R"({"num_hidden_layers": 3, "sliding_window": 16, "max_window_layers": 2})");
  EXPECT_EQ(upper.sliding_layers, (std::vector<bool>{false, false, true}));
  const ModelConfig listed = load_json(
      R"({"num_hidden_layers": 2, "sliding_window": 16, "max_window_layers": 2,
          "layer_types": ["sliding_attention", "full_attention"]})");
  EXPECT_EQ(listed.sliding_layers, (std::vector<bool>{true, false}));
  const auto message = [](const std::string& types) {
    return message_for(R"({"num_hidden_layers": 2, "sliding_window": 16, "layer_types": )" + types +
                       "}");
  };
  EXPECT_TRUE(message(R"(["sliding_attention"])")
                  .ends_with("layer_types has 1 element, expected one for each of 2 layers"));
  EXPECT_TRUE(message(R"(["full_attention", "chunked_attention"])")
                  .ends_with("layer_types[1] is \"chunked_attention\", expected "
                             "\"sliding_attention\" or \"full_attention\""));
  EXPECT_TRUE(message(R"("full_attention")")
                  .ends_with("expected a list of \"sliding_attention\" or \"full_attention\""));
}

// As google/gemma-3-4b-it has it.
constexpr const char* kMultimodal = R"({
  "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
  "model_type": "gemma3", "torch_dtype": "bfloat16", "hidden_size": 1, "vision_config": {},
  "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                  "num_hidden_layers": 13, "eos_token_id": 1, "sliding_window": 1024,
                  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})";

TEST(ModelConfig, OfAMultimodalModelItReadsTheTextPart) {
  const ModelConfig config = load_json(kMultimodal);
  EXPECT_EQ(config.architecture, "Gemma3ForConditionalGeneration");
  EXPECT_EQ(config.dtype, DType::kBFloat16);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.hidden_size, 2560);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.query_scalar, 256);
  EXPECT_EQ(config.norm_offset, 1);
  EXPECT_EQ(config.attention_soft_cap, 0);
  EXPECT_EQ(config.final_soft_cap, 0);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.window_rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling.kind, "linear");
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.max_context_length(), 131072);  // the stretch is in it
  EXPECT_EQ(config.sliding_window, 1024);
  std::vector<bool> windows(13, true);
  windows[5] = windows[11] = false;
  EXPECT_EQ(config.sliding_layers, windows);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(load_json(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8,
                     "text_config": {"hidden_size": 16}})")
                .hidden_size,
            8);
}

ModelConfig load_gemma(int version, const std::string& fields) {
  return load_json(
      fmt::format(R"({{"architectures": ["Gemma{}ForCausalLM"]{}}})", version, fields));
}

TEST(ModelConfig, AGemma2HasWindowsInEverySecondLayerAndSoftCaps) {
  const ModelConfig silent = load_gemma(2, R"(, "num_hidden_layers": 3, "hidden_act": "gelu")");
  EXPECT_EQ(silent.vocab_size, 256000);
  EXPECT_EQ(silent.max_position_embeddings, 8192);
  EXPECT_EQ(silent.hidden_act, "gelu_pytorch_tanh");  // hidden_act counts for nothing
  EXPECT_EQ(silent.attention_soft_cap, 50);
  EXPECT_EQ(silent.final_soft_cap, 30);
  EXPECT_EQ(silent.rope_theta, 1e4);
  EXPECT_EQ(silent.window_rope_theta, 0);
  EXPECT_EQ(silent.sliding_window, 4096);
  EXPECT_EQ(silent.sliding_layers, (std::vector<bool>{true, false, true}));
  const ModelConfig said = load_gemma(
      2, R"(, "attn_logit_softcapping": null, "final_logit_softcapping": 12.5, "head_dim": 64,
            "hidden_activation": "gelu", "query_pre_attn_scalar": 144, "num_key_value_heads": 2,
            "tie_word_embeddings": false, "num_hidden_layers": 1, "sliding_window": 16,
            "layer_types": ["full_attention"],
            "rope_parameters": {"rope_theta": 2e4, "rope_type": "default"})");
  EXPECT_EQ(said.attention_soft_cap, 0);
  EXPECT_EQ(said.final_soft_cap, 12.5);
  EXPECT_EQ(said.head_dim, 64);
  EXPECT_EQ(said.hidden_act, "gelu");
  EXPECT_EQ(said.query_scalar, 144);
  EXPECT_EQ(said.num_key_value_heads, 2);
  EXPECT_FALSE(said.tie_word_embeddings);
  EXPECT_EQ(said.sliding_window, 16);
  EXPECT_EQ(said.sliding_layers, std::vector<bool>{false});
  EXPECT_EQ(said.rope_theta, 2e4);
}

TEST(ModelConfig, AGemma3HasARotaryTableForLayersWithAWindow) {
  const ModelConfig four =
      load_gemma(3, R"(, "num_hidden_layers": 4, "sliding_window_pattern": 3, "rope_theta": 2e6,
                         "rope_local_base_freq": 3e4, "use_sliding_window": false)");
  EXPECT_EQ(four.rope_theta, 2e6);
  EXPECT_EQ(four.window_rope_theta, 3e4);
  EXPECT_EQ(four.sliding_layers, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(four.sliding_window, 4096);
  const ModelConfig five = load_gemma(3, R"(, "rope_parameters": {
            "full_attention": {"rope_theta": 2e6, "rope_type": "linear", "factor": 8},
            "sliding_attention": {"rope_theta": 3e4, "rope_type": "default"}})");
  EXPECT_EQ(five.rope_theta, 2e6);
  EXPECT_EQ(five.window_rope_theta, 3e4);
  EXPECT_EQ(five.rope_scaling.kind, "linear");
  EXPECT_EQ(five.rope_scaling.factor, 8);
  const ModelConfig local =
      load_gemma(3, R"(, "rope_parameters": {"sliding_attention": {"rope_theta": 3e4}})");
  EXPECT_EQ(local.rope_theta, 1e6);
  EXPECT_EQ(local.window_rope_theta, 3e4);
}

TEST(ModelConfig, WhatAGemmaMayNotHaveIsRefusedInOneSentence) {
  const auto message = [](const std::string& fields) {
    return std::string(error_of([&] { load_gemma(3, fields); }).what());
  };
  EXPECT_NE(message(R"(, "use_bidirectional_attention": true)")
                .find("config.json: use_bidirectional_attention is true, which is not supported"),
            std::string::npos);
  EXPECT_NE(message(R"(, "sliding_window": null)").find("\"sliding_window\" is null"),
            std::string::npos);
  EXPECT_NE(message(R"(, "query_pre_attn_scalar": 0)").find("\"query_pre_attn_scalar\" is 0"),
            std::string::npos);
  EXPECT_NE(message(R"(, "final_logit_softcapping": 0)").find("\"final_logit_softcapping\" is 0"),
            std::string::npos);
  EXPECT_NE(message(R"(, "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}})")
                .find("rope_parameters, sliding_attention: only rope_type \"default\" of whole "
                      "heads is supported, found \"yarn\""),
            std::string::npos);
  EXPECT_NE(message(R"(, "rope_parameters": {"sliding_attention": 5})")
                .find("sliding_attention: expected a JSON object"),
            std::string::npos);
}

ModelConfig load_type(const std::string& type, const std::string& fields) {
  return load_json(fmt::format(R"({{"model_type": "{}", "num_hidden_layers": 4, "hidden_size": 64,
                              "num_attention_heads": 4{}}})",
                               type, fields));
}

TEST(ModelConfig, APhi3StretchesByListsOfDivisors) {
  const std::string lists = R"("short_factor": [1, 1.5, 2, 2.5], "long_factor": [2, 3, 4, 5])";
  const ModelConfig phi = load_type("phi3", R"(, "partial_rotary_factor": 0.5,
      "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
      "rope_scaling": {"type": "su", )" + lists +
                                                "}");
  EXPECT_EQ(phi.rotary_dim, 8);
  EXPECT_EQ(phi.rope_scaling.kind, "default");
  EXPECT_EQ(phi.rope_scaling.divisors, (std::vector<double>{1, 1.5, 2, 2.5}));
  EXPECT_EQ(phi.rope_scaling.long_divisors, (std::vector<double>{2, 3, 4, 5}));
  EXPECT_EQ(phi.rope_scaling.original_max_position_embeddings, 4096);
  EXPECT_NEAR(phi.rope_scaling.attention_factor, std::sqrt(1 + 5.0 / 12), 1e-12);
  EXPECT_EQ(phi.max_context_length(), 131072);
  EXPECT_EQ(phi.rms_norm_eps, 1e-5f);
  EXPECT_TRUE(phi.unknown_keys.empty());
  const auto message = [](const std::string& fields) {
    return std::string(error_of([&] { load_type("phi3", fields); }).what());
  };
  EXPECT_NE(message(R"(, "rope_scaling": {"type": "longrope", )" + lists + "}")
                .find("\"short_factor\" is an array, expected a list of 8 numbers above 0"),
            std::string::npos);
  EXPECT_NE(message(R"(, "rope_scaling": {"type": "longrope"})").find("\"short_factor\" is miss"),
            std::string::npos);
  EXPECT_NE(message(R"(, "partial_rotary_factor": 0.2)")
                .find("a share of the 16 elements of a head that is an even number of them"),
            std::string::npos);
}

TEST(ModelConfig, AGraniteHasFactors) {
  const ModelConfig config =
      load_type("granite", R"(, "embedding_multiplier": 12, "residual_multiplier": 0.22,
                                "attention_multiplier": 0.0078125, "logits_scaling": 8.0)");
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_EQ(config.residual_scale, 0.22f);
  EXPECT_EQ(config.query_scalar, 16384);
  EXPECT_EQ(config.logit_scale, 0.125f);
  EXPECT_EQ(load_type("granite", "").query_scalar, 1);
}

TEST(ModelConfig, ASmolLm3DoesNotTurnInEveryFourthLayer) {
  EXPECT_EQ(load_type("smollm3", "").unrotated_layers, (std::vector<bool>{0, 0, 0, 1}));
  const ModelConfig listed = load_type("smollm3", R"(, "no_rope_layers": [1, 0, 0, 1],
                                                       "sliding_window": 8)");
  EXPECT_EQ(listed.unrotated_layers, (std::vector<bool>{0, 1, 1, 0}));
  EXPECT_EQ(listed.sliding_window, 0);
  EXPECT_TRUE(listed.tie_word_embeddings);
  const ModelConfig windows = load_type("smollm3", R"(, "no_rope_layer_interval": 2,
      "use_sliding_window": true, "sliding_window": 8)");
  EXPECT_EQ(windows.sliding_layers, (std::vector<bool>{0, 1, 0, 1}));
  const Error error = error_of([] { load_type("smollm3", R"(, "no_rope_layers": [1, 2])"); });
  EXPECT_NE(std::string(error.what()).find("expected 0 or 1 for every layer"), std::string::npos);
}

TEST(ModelConfig, AnOlmo3StretchesInLayersWithoutAWindowOnly) {
  const ModelConfig four = load_type("olmo3", R"(, "rope_theta": 3e5, "max_position_embeddings": 64,
                              "rope_scaling": {"rope_type": "yarn", "factor": 8.0})");
  EXPECT_EQ(four.sliding_window, 4096);
  EXPECT_EQ(four.sliding_layers, (std::vector<bool>{1, 1, 1, 0}));
  EXPECT_EQ(four.rope_scaling.kind, "yarn");
  EXPECT_EQ(four.window_rope_theta, 3e5);
  EXPECT_EQ(load_type("olmo3", R"(, "use_sliding_window": false)").sliding_layers,
            four.sliding_layers);  // a key that OLMo 3 does not have
  const ModelConfig five = load_type("olmo3", R"(, "rope_parameters": {
      "full_attention": {"rope_theta": 2e6, "rope_type": "linear", "factor": 8},
      "sliding_attention": {"rope_theta": 3e4, "rope_type": "default"}})");
  EXPECT_EQ(five.rope_theta, 2e6);
  EXPECT_EQ(five.rope_scaling.factor, 8);
  EXPECT_EQ(five.window_rope_theta, 3e4);
}

TEST(ModelConfig, OfAGlm4HalfOfAHeadTurns) {
  const ModelConfig config = load_type("glm4", "");
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_EQ(load_type("glm4", R"(, "rope_parameters": {"partial_rotary_factor": 0.25}
                                )")
                .rotary_dim,
            32);
}

TEST(ModelConfig, KeysThatNothingKnowsAreListed) {
  const ModelConfig config = load_json(
      R"({"attention_dropout": 0.5, "_name_or_path": "x", "clip_qkv": 8.0, "alibi": true,
          "use_mrope": false, "moe": null, "no": 0, "nor": "", "neither": [], "but": "some",
          "rope_scaling": {"type": "linear", "factor": 2, "beta": 3}})");
  EXPECT_EQ(config.unknown_keys,
            (std::vector<std::string>{"rope_scaling.beta", "clip_qkv", "alibi", "but"}));
}

// Keys of published models, or of folders that transformers writes.
TEST(ModelConfig, KeysThatTransformersDoesNotComputeWithAreHarmless) {
  const ModelConfig config = load_json(
      R"({"is_llama_config": true, "neftune_noise_alpha": 5, "max_sequence_length": 2048,
          "unk_token_id": 3, "dual_chunk_attention_config": {"chunk_size": 262144},
          "max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "attn_factor": 0.8, "original_max_position_embeddings": 16}})");
  EXPECT_EQ(config.unknown_keys, std::vector<std::string>());
}

TEST(ModelConfig, GenerationConfigGivesDefaultsAndMoreEndTokens) {
  const ModelConfig config = load_json(R"({"eos_token_id": 7})",
                                       R"({"eos_token_id": [9, 7], "temperature": 0.6, "top_k": 20,
               "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05, "max_new_tokens": 128})");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(config.default_sampling_params.temperature, 0.6);
  EXPECT_EQ(config.default_temperature_source, "generation_config.json");
  EXPECT_EQ(load_json("{}", R"({"temperature": null, "top_k": 20})").default_temperature_source,
            "");
  EXPECT_EQ(config.default_sampling_params.top_k, 20);
  EXPECT_EQ(config.default_sampling_params.top_p, 0.95);
  EXPECT_EQ(config.default_sampling_params.min_p, 0.01);
  EXPECT_EQ(config.default_sampling_params.repetition_penalty, 1.05);
  EXPECT_EQ(config.default_sampling_params.max_tokens, 128);
  const auto many = [](int count) {
    const std::vector<int> ids(static_cast<size_t>(count), 5);
    return fmt::format(R"({{"eos_token_id": [{}]}})", fmt::join(ids, ", "));
  };
  EXPECT_EQ(load_json(many(1024)).eos_token_ids, std::vector<int32_t>{5});
  EXPECT_NE(message_for(many(1025)).find("a list of at most 1024 token ids"), std::string::npos);
  const ModelConfig without = load_json(R"({"eos_token_id": -1})");
  EXPECT_TRUE(without.eos_token_ids.empty());
  EXPECT_EQ(without.default_sampling_params.temperature, SamplingParams().temperature);
}

struct BadConfig {
  const char* config;
  const char* generation_config;
  const char* message;
};

TEST(ModelConfig, BadFieldsAreNamedInOneSentence) {
  const BadConfig cases[] = {
      {"", "", "config.json: not valid JSON"},
      {"{\"a\": }", "", "config.json: not valid JSON"},
      {"[1]", "", "config.json: expected a JSON object, found array"},
      {R"({"a": 1, "a": 2})", "", "the key \"a\" appears twice"},
      {R"({"hidden_size": "64"})", "", "\"hidden_size\" is \"64\", expected an integer from 1"},
      {R"({"hidden_size": 64.0})", "", "\"hidden_size\" is 64.0, expected an integer"},
      {R"({"hidden_size": 0})", "", "\"hidden_size\" is 0, expected an integer from 1"},
      {R"({"hidden_size": -5})", "", "\"hidden_size\" is -5"},
      {R"({"hidden_size": 18446744073709551615})", "", "\"hidden_size\" is 18446744073709551615"},
      {R"({"vocab_size": 1e9})", "", "\"vocab_size\" is 1000000000.0"},
      {R"({"num_hidden_layers": 1000000000})", "", "expected an integer from 1 to 10000"},
      {R"({"rms_norm_eps": "x"})", "", "\"rms_norm_eps\" is \"x\", expected a number"},
      {R"({"rope_theta": 0})", "", "\"rope_theta\" is 0, expected a number from 1"},
      {R"({"tie_word_embeddings": 1})", "", "\"tie_word_embeddings\" is 1, expected true or false"},
      {R"({"hidden_act": []})", "", "\"hidden_act\" is an array, expected a string"},
      {R"({"architectures": []})", "", "\"architectures\" is an array, expected a list of one"},
      {R"({"torch_dtype": "float64"})", "", "dtype float64 can't be loaded"},
      {"{\"torch_dtype\": \"a\\u0085\\u001b\\u00a0b\"}", "", "dtype a??\u00a0b can't be loaded"},
      {R"({"rope_scaling": 5})", "", "config.json, rope_scaling: expected a JSON object"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0}})", "",
       "config.json, rope_scaling: \"factor\" is 0"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "", "\"factor\" is 0.5"},
      {R"({"rope_scaling": {"type": "llama3", "low_freq_factor": 4}})", "",
       "high_freq_factor is 4, expected more than low_freq_factor"},
      {R"({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2}})", "",
       "config.json: rope_theta is 1, but yarn needs more than 1"},
      {R"({"eos_token_id": "x"})", "", "\"eos_token_id\" is \"x\", expected a token id"},
      {R"({"eos_token_id": [1, 4294967296]})", "", "expected a token id or a list"},
      {R"({"quantization_config": {"bits": 4}})", "", "quant_method (none) can't be loaded"},
      {"{}", "{", "generation_config.json: not valid JSON"},
      {"{}", R"({"temperature": -1})", "generation_config.json: \"temperature\" is -1"},
      {"{}", R"({"top_p": 0.0})", "\"top_p\" is 0.0, expected a number above 0"},
      {"{}", R"({"top_p": 1.5})", "\"top_p\" is 1.5"},
      {"{}", R"({"top_k": 0.5})", "\"top_k\" is 0.5, expected an integer"},
      {"{}", R"({"repetition_penalty": 0})",
       "\"repetition_penalty\" is 0, expected a number above"},
      {"{}", R"({"max_new_tokens": 0})", "\"max_new_tokens\" is 0"},
  };
  for (const BadConfig& bad : cases) {
    const std::string message = message_for(bad.config, bad.generation_config);
    EXPECT_NE(message.find(bad.message), std::string::npos) << message << "\nfor " << bad.config;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ModelConfig, DeepNestingIsRefused) {
  std::string text(1'000'000, '[');
  EXPECT_NE(message_for(text).find("nested deeper than 64"), std::string::npos);
}

TEST(ModelConfig, MissingFoldersAndFilesAreRefused) {
  const TempDir dir;
  const Error folder = error_of([&] { load_model_config(dir.path() + "/none"); });
  EXPECT_EQ(folder.code(), ErrorCode::kNotFound);
  EXPECT_NE(std::string(folder.what()).find("/none: no such folder"), std::string::npos);
  const Error file = error_of([&] { load_model_config(dir.path()); });
  EXPECT_EQ(file.code(), ErrorCode::kNotFound);
  EXPECT_EQ(std::string(file.what()),
            dir.path() + ": neither config.json nor a GGUF file is in this folder");
  dir.write("config.json", "{}");
  EXPECT_NO_THROW(load_model_config(dir.path()));
  std::filesystem::create_symlink("../blobs/0", dir.path() + "/generation_config.json");
  EXPECT_EQ(std::string(error_of([&] { load_model_config(dir.path()); }).what()),
            dir.path() + "/generation_config.json, a link to ../blobs/0: no such file");
  const std::string huge = dir.write("config.json", std::string((16 << 20) + 1, ' '));
  EXPECT_EQ(std::string(error_of([&] { load_model_config(dir.path()); }).what()),
            huge + ": 16777217 bytes long, expected at most 16777216");
}

class RealModelConfigs : public testing::ReferenceDataTest {
 protected:
  RealModelConfigs() : ReferenceDataTest({"tokenizers"}) {}

  ModelConfig load_config(const std::string& name) const {
    ModelConfig config = load_model_config((folder("tokenizers") / name).string());
    EXPECT_EQ(fmt::format("{}", fmt::join(config.unknown_keys, ", ")), "") << name;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(All, RealModelConfigs, testing::kExtents, testing::name_of_extent);

TEST_P(RealModelConfigs, AreRead) {
  const ModelConfig qwen3 = load_config("qwen3");
  EXPECT_EQ(qwen3.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.eos_token_ids, (std::vector<int32_t>{151645, 151643}));
  EXPECT_EQ(qwen3.default_sampling_params.temperature, 0.6);
  const ModelConfig qwen2 = load_config("qwen2.5");
  EXPECT_EQ(qwen2.sliding_window, 0);
  EXPECT_EQ(qwen2.head_dim, 128);
  const ModelConfig mistral = load_config("mistral-v0.2");
  EXPECT_EQ(mistral.architecture, "MistralForCausalLM");
  EXPECT_EQ(mistral.sliding_window, 0);
  if (!is_whole()) return;
  const ModelConfig llama2 = load_config("llama-2");
  EXPECT_EQ(llama2.dtype, DType::kFloat16);
  EXPECT_EQ(llama2.num_key_value_heads, 32);
  EXPECT_EQ(llama2.rope_theta, 10000.0);
  const ModelConfig llama3 = load_config("llama-3.2");
  EXPECT_EQ(llama3.rope_scaling.kind, "llama3");
  EXPECT_EQ(llama3.eos_token_ids.size(), 3u);
}

// Of a hybrid, with these members more.
std::string hybrid_config(const std::string& members) {
  return R"({"architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 5)" +
         (members.empty() ? "" : ", " + members) + "}";
}

TEST(ModelConfig, MutatedFilesLoadOrThrowError) {
  std::mt19937_64 random(7);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string generation =
      R"({"eos_token_id": [9, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01,
          "repetition_penalty": 1.05, "max_new_tokens": 128})";
  const std::string hybrid = hybrid_config(
      R"("layer_types": ["linear_attention", "linear_attention", "linear_attention",
                         "full_attention", "linear_attention"], "linear_num_key_heads": 2,
         "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 64,
         "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "attn_output_gate": true)");
  const std::string alphabet = "{}[]\",:0123456789-.eE\\ntrufals\x00\xff\x80";
  const TempDir dir;
  int loaded = 0, refused = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string text = round % 4 == 0   ? generation
                       : round % 4 == 1 ? kMultimodal
                       : round % 4 == 2 ? hybrid
                                        : kTransformers4;
    const size_t edits = 1 + below(3);
    for (size_t i = 0; i < edits && !text.empty(); ++i) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + below(10));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
        case 3:
          text[at] = static_cast<char>(random());
          break;
      }
    }
    dir.write(round % 4 == 0 ? "generation_config.json" : "config.json", text);
    dir.write(round % 4 == 0 ? "config.json" : "generation_config.json", "{}");
    try {
      const ModelConfig config = load_model_config(dir.path());
      ASSERT_GE(config.hidden_size, 0);
      ASSERT_GE(config.head_dim, 0);
      ++loaded;
    } catch (const Error& error) {
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 1'000);
}

TEST(ModelConfig, HybridsSayWhichLayersAreRecurrentAndWhatTheyKeep) {
  const ModelConfig usual = load_json(hybrid_config(""));
  EXPECT_EQ(usual.recurrent.layers, (std::vector<bool>{true, true, true, false, true}));
  EXPECT_EQ(usual.recurrent.num_key_heads, 16);
  EXPECT_EQ(usual.recurrent.num_value_heads, 32);
  EXPECT_EQ(usual.recurrent.key_dim, 128);
  EXPECT_EQ(usual.recurrent.value_dim, 128);
  EXPECT_EQ(usual.recurrent.conv_width, 4);
  EXPECT_EQ(usual.head_dim, 256);
  EXPECT_EQ(usual.rotary_dim, 64);
  EXPECT_EQ(usual.rope_theta, 1e4);
  const ModelConfig config = load_json(hybrid_config(
      R"("full_attention_interval": 2, "linear_num_value_heads": 48, "mtp_num_hidden_layers": 1,
         "mamba_ssm_dtype": "float32", "output_gate_type": "swish", "attn_output_gate": true,
         "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "rope_type": "default",
                             "mrope_section": [11, 11, 10], "mrope_interleaved": true})"));
  EXPECT_EQ(config.recurrent.layers, (std::vector<bool>{true, false, true, false, true}));
  EXPECT_EQ(config.recurrent.num_value_heads, 48);
  EXPECT_EQ(config.num_prediction_layers, 1);
  EXPECT_EQ(config.rotary_dim, 128);
  EXPECT_EQ(config.rope_theta, 1e7);
  EXPECT_TRUE(config.unknown_keys.empty());
  EXPECT_EQ(load_json(hybrid_config(R"("layer_types": ["full_attention", "linear_attention",
      "full_attention", "full_attention", "full_attention"])"))
                .recurrent.layers,
            (std::vector<bool>{false, true, false, false, false}));
}

TEST(ModelConfig, HybridsThatFitNoRuleAreRefusedInASentence) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("layer_types": ["linear_attention"])",
       "layer_types has 1 element, expected one for each of 5 layers"},
      {R"("layer_types": ["linear_attention", "linear_attention", "mamba", "full_attention",
                          "full_attention"])",
       "layer_types[2] is \"mamba\", expected \"linear_attention\" or \"full_attention\""},
      {R"("linear_num_key_heads": 3)",
       "recurrent layers have 32 value heads, expected a multiple of their 3 key heads"},
      {R"("linear_key_head_dim": 20)",
       "heads of recurrent layers have 20 and 128 elements, only multiples of 8 are supported"},
      {R"("attn_output_gate": false)", "attn_output_gate is false, which is not supported"},
      {R"("output_gate_type": "sigmoid")", "output_gate_type is not swish, which is not supported"},
      {R"("mtp_use_dedicated_embeddings": true)",
       "mtp_use_dedicated_embeddings is true, which is not supported"},
      {R"("full_attention_interval": 6)", "no layer is of attention, which is not supported"},
      {R"("hidden_act": "gelu")", "hidden_act is not silu, which is not supported"},
  };
  for (const auto& [member, sentence] : cases) {
    const std::string message = message_for(hybrid_config(member));
    EXPECT_TRUE(message.ends_with(sentence)) << message;
  }
  const std::pair<const char*, const char*> olmos[] = {
      {R"("layer_types": ["full_attention", "mamba"])",
       "layer_types[1] is \"mamba\", expected \"linear_attention\" or \"full_attention\""},
      {R"("linear_num_key_heads": 3)",
       "recurrent layers have 4 value heads, expected a multiple of their 3 key heads"},
      {R"("linear_key_head_dim": 12)",
       "heads of recurrent layers have 12 and 24 elements, only multiples of 8 are supported"},
      {R"("hidden_act": "gelu")", "hidden_act is not silu, which is not supported"},
  };
  for (const auto& [member, sentence] : olmos) {
    const std::string message = message_for(
        R"({"architectures": ["OlmoHybridForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "full_attention_interval": 2, )" +
        std::string(member) + "}");
    EXPECT_TRUE(message.ends_with(sentence)) << message;
  }
}

}  // namespace
}  // namespace nanovllm
