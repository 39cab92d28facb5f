// What make_model refuses and how, and what a model owes its runner besides right logits.
#include "models/model.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/registry.h"
#include "base/testing.h"
#include "io/gguf_testing.h"
#include "io/testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::golden_dir;
using testing::ModelRig;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A copy of a golden checkpoint that a test may spoil.
class Copy {
 public:
  explicit Copy(const std::string& name)
      : config_(json::parse(read(golden_dir(name) + "/config.json"))) {
    const std::string bytes = read(golden_dir(name) + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header_ = json::parse(bytes.substr(8, length));
    data_ = bytes.substr(8 + length);
  }

  json& config() { return config_; }
  void rename_tensor(const std::string& from, const std::string& to) {
    header_[to] = header_.at(from);
    header_.erase(from);
  }
  void add_tensor(const std::string& name) {
    header_[name] = {
        {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {data_.size(), data_.size() + 4}}};
    data_ += "1234";
  }
  // The folder with all changes.
  const std::string& path() const {
    dir_.write("config.json", config_.dump());
    dir_.write("model.safetensors", testing::safetensors_bytes(header_.dump(), data_));
    return dir_.path();
  }

 private:
  testing::TempDir dir_;
  json config_, header_;
  std::string data_;
};

std::unique_ptr<ModelRig> load(const std::string& dir) {
  return std::make_unique<ModelRig>(dir, DType::kFloat32, make_cpu_backend(2), 16);
}

// The message without the folder's name.
std::string refusal(const Copy& copy, ErrorCode code) {
  const std::string& dir = copy.path();
  const Error error = error_of([&] { load(dir); });
  EXPECT_EQ(error.code(), code) << error.what();
  const std::string message = error.what();
  EXPECT_EQ(message.rfind(dir, 0), 0u) << message;
  return message.substr(dir.size());
}

TEST(ModelLoading, UnknownArchitecturesGetTheListOfKnownOnes) {
  Copy copy("llama2");
  copy.config()["architectures"] = {"GPT2LMHeadModel"};
  std::vector<const char*> names;
  for (const SupportedModel& model : supported_models()) names.push_back(model.architecture);
  const std::string known = fmt::format("; supported are {}", fmt::join(names, ", "));
  EXPECT_EQ(refusal(copy, ErrorCode::kUnsupported),
            "/config.json: architecture GPT2LMHeadModel is not supported" + known);
  copy.config().erase("architectures");
  EXPECT_EQ(refusal(copy, ErrorCode::kUnsupported), "/config.json: names no architecture" + known);
}

TEST(ModelLoading, ModelsThatComeLaterAreRefusedInASentenceThatSaysSo) {
  for (const char* name : {"Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"}) {
    Copy copy("llama2");
    copy.config()["architectures"] = {name};
    copy.config()["layer_types"] = {"linear_attention", "linear_attention", "full_attention"};
    copy.config()["linear_num_value_heads"] = 32;
    EXPECT_EQ(refusal(copy, ErrorCode::kUnsupported),
              fmt::format("/config.json: architecture {} is not supported yet: it comes in a later "
                          "version",
                          name));
  }
}

TEST(ModelLoading, UnknownKeysOfConfigJsonAreNamed) {
  Copy copy("llama2");
  copy.config()["alibi"] = true;
  copy.config()["clip_qkv"] = 8.0;
  EXPECT_EQ(refusal(copy, ErrorCode::kUnsupported),
            "/config.json: nothing here knows \"alibi\", \"clip_qkv\", which may change what the "
            "model computes; take it out of the file if it does not");
}

TEST(SupportedModels, StandInTheDocumentation) {
  std::string table =
      "| model | architecture in config.json | general.architecture in GGUF | reasoning parser | "
      "tool parser |\n|---|---|---|---|---|\n";
  for (const auto& [architecture, family, gguf, reasoning, tools] : supported_models()) {
    table +=
        fmt::format("| {} | {} | {} | {} | {} |\n", family, architecture, gguf, reasoning, tools);
  }
  const std::string page = read(test::source_path("docs/models.md"));
  EXPECT_NE(page.find(table), std::string::npos) << "docs/models.md should have\n" << table;
}

TEST(SupportedModels, AreThoseThatGgufFilesOpenAs) {
  std::set<std::string> names;
  for (const SupportedModel& model : supported_models()) {
    std::istringstream list(model.gguf);
    for (std::string name; list >> name;) names.insert(name.substr(0, name.find(',')));
  }
  const testing::TempDir dir;
  const std::string path = dir.write(
      "model.gguf", testing::GgufWriter().add("general.architecture", std::string("x")).bytes());
  const std::string message = error_of([&] { load_model_config(path); }).what();
  EXPECT_TRUE(message.ends_with(fmt::format("; supported are {}", fmt::join(names, ", "))))
      << message;
}

TEST(ModelLoading, MissingTensorsAreNamed) {
  Copy copy("llama2");
  copy.rename_tensor("model.layers.1.mlp.up_proj.weight", "other");
  EXPECT_EQ(refusal(copy, ErrorCode::kNotFound),
            "/model.safetensors: tensor model.layers.1.mlp.up_proj.weight is missing from the "
            "checkpoint");
}

TEST(ModelLoading, SurplusTensorsAreNamed) {
  Copy copy("llama2");
  copy.add_tensor("model.layers.3.extra");
  EXPECT_EQ(refusal(copy, ErrorCode::kCorruptData),
            ": 1 tensor that a LlamaForCausalLM of this configuration does not have: "
            "model.layers.3.extra");
  Copy biases("llama_biases");
  biases.config()["mlp_bias"] = false;
  EXPECT_EQ(refusal(biases, ErrorCode::kCorruptData),
            ": 9 tensors that a LlamaForCausalLM of this configuration does not have: "
            "model.layers.0.mlp.down_proj.bias, model.layers.0.mlp.gate_proj.bias, "
            "model.layers.0.mlp.up_proj.bias, ...");
}

TEST(ModelLoading, HarmlessSurplusTensorsAreIgnored) {
  Copy copy("llama2");
  copy.add_tensor("model.layers.0.self_attn.rotary_emb.inv_freq");
  copy.config()["tie_word_embeddings"] = true;  // lm_head.weight is there, and not read
  EXPECT_NO_THROW(load(copy.path()));
}

TEST(ModelLoading, LayersThatPredictFurtherTokensAreNamedAndNotUsed) {
  const std::string line = "1 layer: multi-token prediction, not used";
  const auto last_line = [](const std::string& path) {
    return load(path)->model().describe_layers().back();
  };
  for (const char* name :
       {"qwen3_5", "qwen3_5_moe", "gguf_qwen35", "gguf_qwen35moe", "gguf_glm4moe"}) {
    EXPECT_EQ(last_line(golden_dir(name)), line) << name;
  }
  EXPECT_NE(last_line(golden_dir("qwen3_next")), line);
  Copy next("qwen3_next");  // no key says that it has them
  next.add_tensor("mtp.layers.0.input_layernorm.weight");
  next.add_tensor("mtp.fc.weight");
  EXPECT_EQ(last_line(next.path()), line);
  next.add_tensor("mtp2.fc.weight");
  EXPECT_EQ(refusal(next, ErrorCode::kCorruptData),
            ": 1 tensor that a Qwen3NextForCausalLM of this configuration does not have: "
            "mtp2.fc.weight");
}

TEST(ModelLoading, TensorsOfRecurrentLayersAreCheckedLikeAllOthers) {
  const std::string prefix = "model.layers.1.linear_attn.";
  const std::pair<const char*, std::vector<const char*>> tensors[] = {
      {"qwen3_5_moe",
       {"in_proj_qkv.weight", "in_proj_a.weight", "conv1d.weight", "A_log", "norm.weight"}},
      {"qwen3_next", {"in_proj_qkvz.weight", "in_proj_ba.weight", "dt_bias", "out_proj.weight"}},
      {"olmo_hybrid", {"q_proj.weight", "g_proj.weight", "v_conv1d.weight", "o_norm.weight"}},
  };
  for (const auto& [folder, names] : tensors) {
    for (const char* name : names) {
      Copy missing(folder);
      missing.rename_tensor(prefix + name, "other");
      EXPECT_EQ(refusal(missing, ErrorCode::kNotFound),
                "/model.safetensors: tensor " + prefix + name + " is missing from the checkpoint");
    }
  }
  Copy misshapen("qwen3_5_moe");
  misshapen.config()["linear_num_value_heads"] = 4;
  EXPECT_EQ(refusal(misshapen, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.linear_attn.in_proj_qkv.weight has shape "
            "[160, 64], but config.json asks for [192, 64]");
  Copy narrow("olmo_hybrid");
  narrow.config()["linear_conv_kernel_dim"] = 3;
  EXPECT_EQ(refusal(narrow, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.linear_attn.q_conv1d.weight has shape "
            "[64, 1, 4], but config.json asks for [64, 1, 3]");
}

TEST(ModelLoading, MisshapenTensorsAreNamed) {
  Copy copy("llama2");
  copy.config()["intermediate_size"] = 168;
  EXPECT_EQ(refusal(copy, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [160, 64], "
            "but config.json asks for [168, 64]");
  Copy huge("llama2");  // refused before any memory is asked for
  huge.config()["vocab_size"] = 1 << 28;
  EXPECT_EQ(refusal(huge, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.embed_tokens.weight has shape [384, 64], but "
            "config.json asks for [268435456, 64]");
}

TEST(ModelLoading, TensorsOfExpertsAreCheckedLikeAllOthers) {
  const std::string expert = "model.layers.2.mlp.experts.5.up_proj.weight";
  Copy missing("qwen3_moe");
  missing.rename_tensor(expert, "other");
  EXPECT_EQ(refusal(missing, ErrorCode::kNotFound),
            "/model.safetensors: tensor " + expert + " is missing from the checkpoint");
  Copy surplus("qwen3_moe");
  surplus.add_tensor("model.layers.2.mlp.experts.8.up_proj.weight");
  EXPECT_EQ(refusal(surplus, ErrorCode::kCorruptData),
            ": 1 tensor that a Qwen3MoeForCausalLM of this configuration does not have: "
            "model.layers.2.mlp.experts.8.up_proj.weight");
  Copy misshapen("qwen3_moe");
  misshapen.config()["moe_intermediate_size"] = 48;
  EXPECT_EQ(refusal(misshapen, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.mlp.experts.0.gate_proj.weight has shape "
            "[40, 64], but config.json asks for [48, 64]");
  Copy stack("gpt_oss");
  stack.config()["intermediate_size"] = 96;
  EXPECT_EQ(refusal(stack, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.mlp.experts.gate_up_proj.weight has shape "
            "[6, 128, 64], but config.json asks for [6, 192, 64]");
  Copy half("gpt_oss");
  half.rename_tensor("model.layers.1.mlp.experts.down_proj_scales", "other");
  EXPECT_EQ(refusal(half, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.1.mlp.experts.down_proj_blocks is no MXFP4: "
            "expected U8 [experts, rows, blocks, 16], and model.layers.1.mlp.experts.down_proj_"
            "scales of U8 [experts, rows, blocks]");
  Copy twice("gpt_oss");
  twice.add_tensor("model.layers.1.mlp.experts.down_proj.weight");
  EXPECT_EQ(refusal(twice, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.1.mlp.experts.down_proj_blocks is there, and "
            "model.layers.1.mlp.experts.down_proj.weight as well");
  Copy plain("gpt_oss_plain");
  plain.config()["intermediate_size"] = 96;
  EXPECT_EQ(refusal(plain, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.0.mlp.experts.gate_up_proj.weight has shape "
            "[6, 128, 64], but config.json asks for [6, 192, 64]");
  Copy plain_twice("gpt_oss_plain");
  plain_twice.add_tensor("model.layers.1.mlp.experts.down_proj.weight");
  EXPECT_EQ(refusal(plain_twice, ErrorCode::kCorruptData),
            "/model.safetensors: tensor model.layers.1.mlp.experts.down_proj is there, and "
            "model.layers.1.mlp.experts.down_proj.weight as well");
}

TEST(ModelLoading, ConfigsOfExpertsThatNoModelCanHaveAreRefused) {
  const std::tuple<const char*, json, ErrorCode, const char*> cases[] = {
      {"num_experts_per_tok", 9, ErrorCode::kCorruptData,
       "/config.json: \"num_experts_per_tok\" is 9, expected an integer from 1 to 8"},
      {"num_experts_per_tok", nullptr, ErrorCode::kCorruptData,
       "/config.json: 0 active of 8 experts in 1 of 1 groups do not fit together"},
      {"n_group", 3, ErrorCode::kCorruptData,
       "/config.json: 3 active of 8 experts in 1 of 3 groups do not fit together"},
      {"clip_qkv", 8.0, ErrorCode::kUnsupported,
       "/config.json: clip_qkv is not supported, only null"},
      {"swiglu_limit", 5.0, ErrorCode::kCorruptData,
       "/config.json: \"swiglu_limit\" is 5.0, expected 7"},
  };
  for (const auto& [key, value, code, message] : cases) {
    Copy copy("qwen3_moe");
    copy.config()[key] = value;
    EXPECT_EQ(refusal(copy, code), message);
  }
  Copy copy("qwen3_moe");
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"}) {
    copy.config().erase(key);
  }
  EXPECT_EQ(refusal(copy, ErrorCode::kCorruptData),
            "/config.json: the number of experts is missing");
}

TEST(ModelLoading, ConfigsThatNoModelCanHaveAreRefused) {
  const struct {
    const char* key;
    json value;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"intermediate_size", nullptr, ErrorCode::kCorruptData,
       "/config.json: \"intermediate_size\" is missing"},
      {"max_position_embeddings", nullptr, ErrorCode::kCorruptData,
       "/config.json: \"max_position_embeddings\" is missing"},
      {"num_key_value_heads", 3, ErrorCode::kCorruptData,
       "/config.json: num_attention_heads is 4, expected a multiple of num_key_value_heads, which "
       "is 3"},
      {"head_dim", 12, ErrorCode::kUnsupported,
       "/config.json: head_dim is 12, only multiples of 8 are supported"},
      {"hidden_act", "relu", ErrorCode::kUnsupported,
       "/config.json: hidden_act \"relu\" is not supported, only silu, gelu, gelu_new and "
       "gelu_pytorch_tanh"},
      {"rope_scaling", json{{"type", "dynamic"}, {"factor", 2.0}}, ErrorCode::kUnsupported,
       "/config.json: rotary embedding of kind \"dynamic\" is not supported, only default, linear, "
       "llama3 and yarn"},
  };
  for (const auto& bad : cases) {
    Copy copy("llama2");
    copy.config()[bad.key] = bad.value;
    EXPECT_EQ(refusal(copy, bad.code), bad.message);
  }
}

// The CPU, but calls `at_product` with the number of each product, from 1 on, and says that
// `free_bytes` are free, that there are other ranks, or that products can use a table's memory.
class LoadingBackend final : public CpuBackend {
 public:
  LoadingBackend(std::function<void(int)> at_product, int64_t free_bytes)
      : CpuBackend({.num_threads = 1}),
        at_product_(std::move(at_product)),
        free_bytes_(free_bytes) {}
  BackendTraits traits() const override { return {.shares_host_memory = !shares_tables}; }
  MemoryInfo memory() const override { return {.free_bytes = free_bytes_}; }
  std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype) override {
    at_product_(++num_products_);
    return CpuBackend::make_linear(pieces, bias, dtype);
  }
  std::unique_ptr<LinearWeight> make_linear_of_table(Tensor table) override {
    if (!shares_tables) return nullptr;
    shared_tables.push_back(table);
    return std::make_unique<LinearWeight>();
  }
  void check(const StackSpec& spec) const override {
    if (refuses) throw Error(ErrorCode::kUnsupported, fmt::format("{} layers", spec.layers.size()));
  }
  void upload(void* device, const void* host, size_t bytes) override {
    ++num_uploads_;
    CpuBackend::upload(device, host, bytes);
  }
  int rank() const override { return num_ranks - 1; }
  int world_size() const override { return num_ranks; }

  int num_ranks = 1;  // of which this is the last
  bool shares_tables = false;
  bool refuses = false;
  std::vector<Tensor> shared_tables;
  int num_products() const { return num_products_; }
  int num_uploads() const { return num_uploads_; }

 private:
  const std::function<void(int)> at_product_;
  const int64_t free_bytes_;
  std::atomic<int> num_products_ = 0, num_uploads_ = 0;
};

void load_with(const std::string& model_dir, int num_threads, std::function<void(int)> at_product,
               int64_t free_bytes = std::numeric_limits<int64_t>::max()) {
  LoadingBackend backend(std::move(at_product), free_bytes);
  const ModelConfig config = load_model_config(model_dir);
  const WeightStore weights(model_dir);
  make_model({config, weights, backend, DType::kFloat32, 8, 8, 8, num_threads});
}

TEST(ModelLoading, AFailureOnALoadingThreadReachesTheCaller) {
  const Error error = error_of([] {
    load_with(golden_dir("llama2"), 4, [](int product) {
      if (product == 5) throw Error(ErrorCode::kOutOfMemory, "no memory");
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
}

TEST(ModelLoading, WhatTheDeviceDoesNotComputeIsRefusedBeforeAnythingIsUploaded) {
  LoadingBackend backend([](int) {}, std::numeric_limits<int64_t>::max());
  backend.shares_tables = true;  // as on a device, where the embedding is uploaded, too
  const ModelConfig config = load_model_config(golden_dir("llama2"));
  const WeightStore weights(golden_dir("llama2"));
  const auto load = [&] {
    make_model({config, weights, backend, DType::kFloat32, 8, 8, 8, /*num_loading_threads=*/4});
  };
  backend.refuses = true;
  const Error error = error_of(load);
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(error.what(), "3 layers");
  EXPECT_EQ(backend.num_uploads(), 0);
  EXPECT_EQ(backend.num_products(), 0);
  backend.refuses = false;
  load();
  EXPECT_GT(backend.num_uploads(), 0);
  EXPECT_GT(backend.num_products(), 0);
}

TEST(ModelLoading, TakesAsManyThreadsAsItMay) {
  for (const size_t num_threads : {1, 3}) {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::thread::id> threads;
    load_with(golden_dir("llama2"), static_cast<int>(num_threads), [&](int) {
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      changed.notify_all();
      // Whoever comes first waits for the others, so that none is done before all have begun.
      changed.wait_for(lock, std::chrono::seconds(20),
                       [&] { return threads.size() >= num_threads; });
    });
    EXPECT_EQ(threads.size(), num_threads);
  }
}

TEST(ModelLoading, AFileCutShortMeanwhileIsRefused) {
  const Copy copy("llama2");
  const std::string path = copy.path() + "/model.safetensors";
  const Error error = error_of([&] {
    load_with(copy.path(), 1, [&](int product) {
      if (product == 2) std::filesystem::resize_file(path, 5000);
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_NE(std::string(error.what()).find("cut short"), std::string::npos) << error.what();
}

TEST(ModelLoading, ARotaryTableLargerThanMemoryIsRefused) {
  // 8 positions of 16 float32, and the same once more while they are copied.
  const auto load_into = [](int64_t free_bytes) {
    load_with(
        golden_dir("llama2"), 1, [](int) {}, free_bytes);
  };
  EXPECT_NO_THROW(load_into(1024));
  const Error error = error_of([&] { load_into(1023); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_STREQ(error.what(),
               "the rotary table of max_model_len 8 tokens needs 1024 bytes, but 1023 are free; "
               "lower max_model_len");
}

TEST(Model, CountsParametersAndBytes) {
  for (const char* name : {"qwen3_tied", "llama_biases"}) {
    const int64_t stored = WeightStore(golden_dir(name)).total_bytes();
    const bool is_float32 = std::string(name) == "llama_biases";
    const auto rig = load(golden_dir(name));
    EXPECT_EQ(rig->model().num_parameters(), stored / (is_float32 ? 4 : 2));
    const ModelConfig& config = rig->config();
    // A tied head is the embedding in a second layout.
    const int64_t head = config.tie_word_embeddings ? config.vocab_size * config.hidden_size : 0;
    // The table stays in the file.
    const int64_t table = int64_t{config.vocab_size} * config.hidden_size;
    // The CPU pads weights to whole panels.
    const int64_t bytes =
        (rig->model().num_parameters() - table + head) * 4 + table * (is_float32 ? 4 : 2);
    EXPECT_GE(rig->model().weight_bytes(), bytes);
    EXPECT_LT(rig->model().weight_bytes(), bytes + bytes / 20);
  }
}

TEST(Model, CountsTheParametersThatATokenMeets) {
  const auto llama = load(golden_dir("llama2"));
  const Model& dense = llama->model();
  EXPECT_EQ(dense.num_active_parameters(), dense.num_parameters());
  const auto qwen = load(golden_dir("qwen3_moe"));
  EXPECT_EQ(qwen->model().num_parameters(), WeightStore(golden_dir("qwen3_moe")).total_bytes() / 2);
  const auto rig = load(golden_dir("gpt_oss"));  // 3 of 6 experts in two layers
  EXPECT_EQ(rig->model().num_parameters() - rig->model().num_active_parameters(),
            2 * 3 * (3 * 64 * 64 + 2 * 64 + 64));
}

TEST(ModelLoading, ATiedHeadLiesInTheEmbeddingsTableWhereTheBackendCanHaveItSo) {
  const std::string dir = golden_dir("qwen3_tied");  // bfloat16, so that float32 is a copy
  const ModelConfig config = load_model_config(dir);
  const WeightStore weights(dir);
  const StoredTensor stored =
      weights.get("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (const int world_size : {1, 2}) {
    LoadingBackend copying([](int) {}, std::numeric_limits<int64_t>::max());
    LoadingBackend sharing([](int) {}, std::numeric_limits<int64_t>::max());
    sharing.shares_tables = true;
    const auto load_by = [&](LoadingBackend& backend) {
      backend.num_ranks = world_size;
      return make_model({config, weights, backend, DType::kFloat32, 8, 8, 8, 2});
    };
    const auto copied = load_by(copying), shared = load_by(sharing);
    EXPECT_EQ(sharing.num_products(), copying.num_products() - 1);
    ASSERT_EQ(sharing.shared_tables.size(), 1u);
    const Tensor table = sharing.shared_tables[0];
    EXPECT_EQ(table.rows(), config.vocab_size / world_size);
    EXPECT_EQ(table.row_size(), config.hidden_size);
    const int64_t skipped = (world_size - 1) * table.num_elements();
    for (int64_t i = 0; i < table.num_elements(); ++i) {
      ASSERT_EQ(table.f32()[i], to_float(static_cast<const BFloat16*>(stored.data)[skipped + i]));
    }
    EXPECT_EQ(shared->num_parameters(), copied->num_parameters());
    // The copying one is a CPU, which has the head besides the file's table, in bfloat16.
    EXPECT_EQ(shared->weight_bytes() + static_cast<int64_t>(table.bytes()) / 2,
              copied->weight_bytes());
  }
}

TEST(ModelLoading, AHeadOfItsOwnSharesNoTable) {
  LoadingBackend backend([](int) {}, std::numeric_limits<int64_t>::max());
  backend.shares_tables = true;
  const ModelConfig config = load_model_config(golden_dir("llama2"));
  const WeightStore weights(golden_dir("llama2"));
  make_model({config, weights, backend, DType::kBFloat16, 8, 8, 8, 2});
  EXPECT_TRUE(backend.shared_tables.empty());
}

TEST(Model, DescribesItsKvCache) {
  const auto rig = load(golden_dir("qwen3_tied"));
  const KvCacheSpec spec = rig->model().kv_cache_spec(32);
  EXPECT_EQ(spec.block_size, 32);
  EXPECT_EQ(spec.num_kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 24);
  EXPECT_EQ(spec.dtype, DType::kFloat32);
}

std::vector<int32_t> some_ids(int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(i * 37 % 300);
  return ids;
}

TEST(Model, WantingFewerLogitsChangesNone) {
  const auto rig = load(golden_dir("qwen3_tied"));
  const auto all = rig->step({{0, some_ids(40)}, {1, {5}}});
  const auto last = rig->step({{2, some_ids(40)}, {3, {5}}}, /*only_last=*/true);
  EXPECT_EQ(last[0][0], all[0][39]);
  EXPECT_EQ(last[1][0], all[1][0]);
}

TEST(Model, AStepWithoutLogitsStoresItsKeysAndValues) {
  const auto rig = load(golden_dir("qwen3_tied"));
  const auto ids = some_ids(40);
  const auto expected = rig->step({{0, ids}})[0][39];
  rig->prefill({1, {ids.begin(), ids.begin() + 30}});
  EXPECT_EQ(rig->step({{1, {ids.begin() + 30, ids.end()}}})[0][9], expected);
}

TEST(Model, TheLargestStepIsComputed) {
  const auto rig = load(golden_dir("llama2"));
  const int half = ModelRig::kMaxTokens / 2;
  const auto logits = rig->step({{0, some_ids(half)}, {1, some_ids(half)}});
  EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace nanovllm
