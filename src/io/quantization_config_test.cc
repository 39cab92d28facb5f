#include "io/quantization_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::TempDir;

std::optional<QuantizationConfig> load_quantization(const std::string& quantization_config,
                                                    const TempDir& dir = {}) {
  Json document = Json::object();
  if (!quantization_config.empty()) {
    document["quantization_config"] = Json::parse(quantization_config);
  }
  return load_quantization_config(JsonFields(document, "config.json"), dir.path());
}

std::string compressed(const std::string& weights, const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":)"
         R"( {"group_0": {"targets": ["Linear"], "weights": )" +
         weights + "}}" + more + "}";
}

void expect_scheme(const std::optional<WeightScheme>& scheme, int bits, bool is_float,
                   bool symmetric, int64_t rows, int64_t cols) {
  ASSERT_TRUE(scheme.has_value());
  EXPECT_EQ(scheme->num_bits, bits);
  EXPECT_EQ(scheme->is_float, is_float);
  EXPECT_EQ(scheme->symmetric, symmetric);
  EXPECT_EQ(scheme->block_rows, rows);
  EXPECT_EQ(scheme->block_cols, cols);
}

TEST(QuantizationConfig, IsNothingWhereNothingIsSaid) {
  EXPECT_FALSE(load_quantization("").has_value());
}

TEST(QuantizationConfig, OldCompressedTensorsCallItCompressionConfig) {
  const Json document = {{"compression_config", Json::parse(compressed("{}"))}};
  const auto config = load_quantization_config(JsonFields(document, "config.json"), "/nowhere");
  expect_scheme(config->scheme_of("a.b"), 8, false, true, 0, 0);
  EXPECT_EQ(config->where, "config.json, compression_config");
}

TEST(QuantizationConfig, StrategiesSayWhatSharesAScale) {
  const auto of = [](const char* weights) {
    return load_quantization(compressed(weights))->scheme_of("a.b");
  };
  expect_scheme(of(R"({"num_bits": 4, "strategy": "group", "group_size": 32})"), 4, false, true, 1,
                32);
  expect_scheme(of(R"({"num_bits": 4, "group_size": 128, "symmetric": false})"), 4, false, false, 1,
                128);
  expect_scheme(of(R"({"group_size": -1, "type": "INT"})"), 8, false, true, 1, 0);
  expect_scheme(of(R"({"strategy": "channel", "type": "float"})"), 8, true, true, 1, 0);
  expect_scheme(of("{}"), 8, false, true, 0, 0);
  expect_scheme(
      load_quantization(compressed("{}", R"(, "transform_config": {}, "sparsity_config": {})"))
          ->scheme_of("a.b"),
      8, false, true, 0, 0);
  expect_scheme(of(R"({"strategy": "block", "type": "float", "block_structure": [64, 128]})"), 8,
                true, true, 64, 128);
  expect_scheme(of(R"({"strategy": "block", "type": "float", "block_structure": "64x128"})"), 8,
                true, true, 64, 128);
  expect_scheme(
      of(R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})"), 4,
      true, true, 1, 16);
}

TEST(QuantizationConfig, TheMostSpecificTargetCounts) {
  const auto config = load_quantization(R"({"quant_method": "compressed-tensors", "config_groups": {
      "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 1}},
      "b": {"targets": ["re:.*layers\\.1\\..*", "re:.*down_proj$"],
            "weights": {"num_bits": 4, "group_size": 2}},
      "c": {"targets": ["model.layers.1.mlp.up_proj"], "weights": {"num_bits": 4, "group_size": 3}},
      "d": {"targets": ["Embedding"], "weights": {"num_bits": 4, "group_size": 4}},
      "e": {"targets": ["Conv"]}},
      "ignore": ["lm_head", "re:.*layers\\.2\\.mlp", "model.layers.3"]})");
  const auto group = [&](const char* module) {
    const auto scheme = config->scheme_of(module);
    return scheme ? scheme->block_cols : -1;
  };
  EXPECT_EQ(group("model.layers.0.mlp.up_proj"), 1);
  EXPECT_EQ(group("model.layers.0.mlp.down_proj"), 2);
  EXPECT_EQ(group("model.layers.0.mlp.down_proj_2"), 1);
  EXPECT_EQ(group("model.layers.1.mlp.gate_proj"), 2);
  EXPECT_EQ(group("model.layers.1.mlp.up_proj"), 3);
  EXPECT_EQ(group("model.embed_tokens"), 4);
  EXPECT_EQ(group("lm_head"), -1);
  EXPECT_EQ(group("model.layers.2.mlp.down_proj"), -1);
  EXPECT_EQ(group("model.layers.2.self_attn.q_proj"), 1);
  EXPECT_EQ(group("model.layers.3.self_attn.q_proj"), 1);  // names are whole ones
}

TEST(QuantizationConfig, OtherMethodsHaveOneScheme) {
  const auto of = [](const char* config) {
    return load_quantization(config)->scheme_of("anything");
  };
  expect_scheme(of(R"({"quant_method": "fp8"})"), 8, true, true, 128, 128);
  expect_scheme(of(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 32]})"), 8,
                true, true, 64, 32);
  expect_scheme(of(R"({"quant_method": "modelopt", "quant_algo": "FP8"})"), 8, true, true, 0, 0);
  expect_scheme(of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"), 4, true, true, 1, 16);
  expect_scheme(of(R"({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM"})"), 4,
                false, false, 1, 64);
  expect_scheme(of(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {}})"), 8,
                false, false, 1, 0);
  EXPECT_FALSE(of(R"({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})").has_value());
  EXPECT_TRUE(load_quantization(R"({"quant_method": "gptq"})")->zeros_are_less_by_one);
  EXPECT_TRUE(load_quantization(
                  R"({"quant_method": "gptq", "checkpoint_format": "gptq", "format": "gptq_v2"})")
                  ->zeros_are_less_by_one);
  EXPECT_FALSE(load_quantization(R"({"quant_method": "gptq", "checkpoint_format": "gptq_v2"})")
                   ->zeros_are_less_by_one);
}

TEST(QuantizationConfig, ModelOptsOwnFileCountsWhereConfigJsonSaysNothing) {
  const TempDir dir;
  dir.write("hf_quant_config.json", R"({"producer": {}, "quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_EQ(load_quantization("", dir)->method, QuantizationMethod::kModelOpt);
  EXPECT_EQ(load_quantization("", dir)->scheme->num_bits, 4);
  EXPECT_EQ(load_quantization(R"({"quant_method": "fp8"})", dir)->method, QuantizationMethod::kFp8);
  dir.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "W4A16_AWQ"}})");
  const Error error = error_of([&] { load_quantization("", dir); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(error.what()).find("hf_quant_config.json: ModelOpt's W4A16"),
            std::string::npos)
      << error.what();
}

TEST(QuantizationConfig, WhatCanNotBeDecodedIsRefusedByName) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"quant_method": "bitsandbytes"})", "quant_method bitsandbytes"},
      {R"({"quant_method": "hqq"})", "quant_method hqq"},
      {R"({"quant_method": "exl2"})", "quant_method exl2"},
      {R"({"quant_method": "aqlm"})", "quant_method aqlm"},
      {R"({"quant_method": "fbgemm_fp8"})", "quant_method fbgemm_fp8"},
      {R"({"load_in_4bit": true})", "quant_method (none)"},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "FP8 e5m2"},
      {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})", "MIXED_PRECISION"},
      {R"({"quant_method": "awq", "version": "gemv"})", "AWQ's format gemv of 4 bits"},
      {R"({"quant_method": "awq", "version": "gemv_fast"})", "AWQ's format gemv_fast"},
      {R"({"quant_method": "awq", "version": "marlin"})", "AWQ's format marlin"},
      {R"({"quant_method": "awq", "version": "exllama"})", "AWQ's format exllama"},
      {R"({"quant_method": "awq", "backend": "llm-awq"})", "AWQ's format llm-awq"},
      {R"({"quant_method": "awq", "bits": 3})", "AWQ's format gemm of 3 bits"},
      {R"({"quant_method": "gptq", "bits": 3})", "GPTQ's format gptq of 3 bits"},
      {R"({"quant_method": "gptq", "checkpoint_format": "marlin"})", "GPTQ's format marlin"},
      {R"({"quant_method": "gptq", "is_marlin_format": true})", "GPTQ's format marlin"},
      {R"({"quant_method": "gptq", "dynamic": {"-:x": {}}})", "GPTQ's format \"dynamic\""},
      {R"({"quant_method": "compressed-tensors", "format": "marlin-24"})", "2:4 sparsity"},
      {R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})",
       "mxfp4-pack-quantized of compressed-tensors"},
      {compressed("{}", R"(, "sparsity_config": {"format": "sparse-24-bitmask"})"), "2:4 sparsity"},
      {compressed("{}", R"(, "sparsity_config": {"format": "sparse-bitmask"})"), "sparse-bitmask"},
      {compressed("{}", R"(, "transform_config": {"config_groups": {}})"),
       "a model with transforms"},
      {compressed(R"({"num_bits": 2})"), "int of 2 bits"},
      {compressed(R"({"num_bits": 6, "type": "float"})"), "float of 6 bits"},
      {compressed(R"({"num_bits": 4, "type": "float", "group_size": 32})"), "MXFP4"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"],
          "weights": {"num_bits": 4}, "input_activations": {"num_bits": 8}}}})",
       "W4A8"},
  };
  for (const auto& [config, message] : cases) {
    const Error error = error_of([&] { load_quantization(config); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << config;
    const std::string text = error.what();
    EXPECT_EQ(text.rfind("config.json, quantization_config", 0), 0u) << text;
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find("can't be loaded; take the unquantised model"), std::string::npos) << text;
  }
}

TEST(QuantizationConfig, BadFieldsAreNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"5", "expected a JSON object"},
      {R"({"quant_method": 5})", "\"quant_method\" is 5"},
      {R"({"quant_method": "gptq", "bits": 0})", "\"bits\" is 0"},
      {R"({"quant_method": "gptq", "group_size": -2})", "\"group_size\" is -2"},
      {R"({"quant_method": "awq", "group_size": 268435457})", "\"group_size\" is 268435457"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})", "\"weight_block_size\" is an"},
      {R"({"quant_method": "fp8", "weight_block_size": [0, 1]})", "rows and columns of a block"},
      {R"({"quant_method": "fp8", "weight_block_size": [1, 268435457]})", "rows and columns"},
      {R"({"quant_method": "fp8", "weight_block_size": "x"})", "rows and columns of a block"},
      {R"({"quant_method": "compressed-tensors", "config_groups": []})", "\"config_groups\" is an"},
      {R"({"quant_method": "compressed-tensors", "ignore": "x"})", "\"ignore\" is \"x\""},
      {R"({"quant_method": "compressed-tensors", "ignore": [1]})", "a list of names"},
      {compressed(R"({"strategy": "token"})"), "\"strategy\" is \"token\""},
      {compressed(R"({"strategy": "group"})"), "group with a group_size"},
      {compressed(R"({"strategy": "block"})"), "block with a block_structure"},
  };
  for (const auto& [config, message] : cases) {
    const Error error = error_of([&] { load_quantization(config); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData) << config;
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
  const auto expression = [](const std::string& pattern) {
    const auto config = load_quantization(
        R"({"quant_method": "compressed-tensors", "ignore": ["re:)" + pattern + "\"]}");
    return config->scheme_of(std::string(60, 'a'));
  };
  for (const char* bad : {"(", "(a|aa|a*)*[^a]"}) {
    const Error error = error_of([&] { expression(bad); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData) << bad;
    const std::string said = error.what();
    EXPECT_EQ(said.find("config.json, quantization_config: the regular expression re:"), 0u)
        << said;
    EXPECT_NE(said.find("for module aaaa"), said.npos) << said;
  }
}

}  // namespace
}  // namespace nanovllm
