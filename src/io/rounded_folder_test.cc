#include "io/rounded_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/code_format_testing.h"
#include "io/file.h"
#include "io/gguf_testing.h"
#include "io/json.h"
#include "io/testing.h"
#include "io/weight_store.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::TempDir;
constexpr RoundedFormat kWrittenFormats[] = {RoundedFormat::kInt8, RoundedFormat::kInt4,
                                             RoundedFormat::kFp8};

std::optional<QuantizationConfig> quantization_of(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Json document = parse_json(read_text_file(path), path);
  return load_quantization_config(JsonFields(document, path), folder);
}

// A folder with tensors of random numbers.
struct PlainCheckpoint {
  explicit PlainCheckpoint(DType dtype) : dtype(dtype) {
    config = {{"tie_word_embeddings", true}, {"text_config", {{"tie_word_embeddings", true}}}};
    shapes = {{"model.embed_tokens.weight", {9, 64}},
              {"model.layers.0.input_layernorm.weight", {64}},
              {"model.layers.0.self_attn.q_proj.weight", {13, 64}},
              {"model.layers.0.self_attn.q_proj.bias", {13}},
              {"model.layers.0.mlp.gate.weight", {4, 64}},
              {"model.layers.0.mlp.experts.3.down_proj.weight", {64, 96}},
              {"model.layers.0.mlp.up_proj.weight", {5, 40}},
              {"model.vision_tower.layers.0.up_proj.weight", {8, 64}}};
  }

  std::string write() const {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    nlohmann::ordered_json header;
    std::string data;
    for (const auto& [name, shape] : shapes) {
      int64_t count = 1;
      for (const int64_t n : shape) count *= n;
      const size_t begin = data.size();
      for (int64_t i = 0; i < count; ++i) {
        const float number = normal(random);
        // Half of a float32 is a bfloat16; as a float16 these bits are some number, too.
        const uint16_t bits = static_cast<uint16_t>(to_bfloat16(number).bits & 0xbfff);
        if (dtype == DType::kFloat32) data.append(reinterpret_cast<const char*>(&number), 4);
        if (dtype != DType::kFloat32) data.append(reinterpret_cast<const char*>(&bits), 2);
      }
      const char* type = dtype == DType::kFloat32   ? "F32"
                         : dtype == DType::kFloat16 ? "F16"
                                                    : "BF16";
      header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    dir.write("model.safetensors", testing::safetensors_bytes(header.dump(), data));
    dir.write("config.json", config.dump());
    dir.write("tokenizer.json", "{}");
    dir.write("pytorch_model.bin", "weights");
    return dir.path();
  }

  int64_t num_parameters() const {
    int64_t sum = 0;
    for (const auto& [name, shape] : shapes) {
      int64_t count = 1;
      for (const int64_t n : shape) count *= n;
      sum += count;
    }
    return sum;
  }

  DType dtype;
  Json config;
  std::map<std::string, std::vector<int64_t>> shapes;
  TempDir dir;
};

RoundedFolder quantize(const std::string& model, const std::string& out, RoundedFormat format) {
  return write_rounded_folder(model, out, format, 2, [](int64_t, int64_t) {});
}

// Codes and scales of a matrix that was written, read again, and of one that is rounded on the way.
void expect_same_codes(const StoredTensor& written, const StoredTensor& numbers,
                       RoundedFormat format) {
  const int64_t rows = numbers.shape[0], cols = numbers.shape[1];
  const RoundedMatrix rounded("m", {numbers.data, numbers.dtype, nullptr, rows, cols}, format);
  ASSERT_NE(written.decoder, nullptr);
  const CodeFormat* codes = written.decoder->code_format();
  ASSERT_NE(codes, nullptr);
  EXPECT_EQ(codes->layout, rounded.code_format()->layout);
  EXPECT_EQ(codes->scales, rounded.code_format()->scales);
  EXPECT_EQ(codes->group_columns, rounded.code_format()->group_columns);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<uint8_t> a(static_cast<size_t>(cols)), b(a);
    written.decoder->read_codes(row, 0, cols, a.data());
    rounded.read_codes(row, 0, cols, b.data());
    EXPECT_EQ(a, b);
    std::vector<float> x(a.size()), y(a.size());
    written.decoder->decode(row, 0, cols, x.data());
    rounded.decode(row, 0, cols, y.data());
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * 4), 0);
  }
}

TEST(RoundedFolder, IsReadAsTheCodesThatLoadingMakes) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const RoundedFormat format : kWrittenFormats) {
      const PlainCheckpoint checkpoint(dtype);
      const TempDir out;
      const std::string model = checkpoint.write(), folder = out.path() + "/new/folder";
      const RoundedFolder report = quantize(model, folder, format);
      const WeightStore before(model), after(folder, quantization_of(folder));
      const auto expect = [&](const std::string& name, const std::string& from, RoundedFormat as) {
        SCOPED_TRACE(name);
        const auto& shape = checkpoint.shapes.at(from);
        expect_same_codes(after.get(name, shape), before.get(from, shape), as);
      };
      expect("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.weight",
             format);
      expect("model.layers.0.mlp.experts.3.down_proj.weight",
             "model.layers.0.mlp.experts.3.down_proj.weight", format);
      expect("lm_head.weight", "model.embed_tokens.weight", RoundedFormat::kInt8);
      // Rows of 40 are no whole groups of 32.
      const bool is_fp8 = format == RoundedFormat::kFp8;
      EXPECT_EQ(after.get("model.layers.0.mlp.up_proj.weight", {5, 40}).decoder != nullptr, is_fp8);
      EXPECT_EQ(report.num_rounded, is_fp8 ? 4 : 3);
      EXPECT_EQ(report.num_parameters, checkpoint.num_parameters() + 9 * 64);
      EXPECT_EQ(report.num_ungrouped, is_fp8 ? 0 : 1);
      for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.gate.weight",
                               "model.layers.0.input_layernorm.weight",
                               "model.vision_tower.layers.0.up_proj.weight"}) {
        const auto& shape = checkpoint.shapes.at(name);
        const StoredTensor kept = after.get(name, shape), original = before.get(name, shape);
        ASSERT_EQ(kept.decoder, nullptr);
        ASSERT_EQ(kept.bytes, original.bytes);
        EXPECT_EQ(std::memcmp(kept.data, original.data, static_cast<size_t>(kept.bytes)), 0);
      }
    }
  }
}

TEST(RoundedFolder, ConfigSaysHowAndOtherFilesAreCopied) {
  const PlainCheckpoint checkpoint(DType::kBFloat16);
  const TempDir out;
  quantize(checkpoint.write(), out.path(), RoundedFormat::kInt4);
  const Json config = Json::parse(std::ifstream(out.path() + "/config.json"));
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["text_config"]["tie_word_embeddings"], false);
  const Json& how = config["quantization_config"];
  EXPECT_EQ(how["format"], "mixed-precision");
  EXPECT_EQ(how["config_groups"]["group_0"]["format"], "pack-quantized");
  EXPECT_EQ(how["config_groups"]["group_1"]["targets"][0], "re:.*lm_head");
  EXPECT_EQ(how["ignore"],
            (std::vector<std::string>{"model.layers.0.mlp.gate", "model.layers.0.mlp.up_proj",
                                      "model.vision_tower.layers.0.up_proj"}));
  EXPECT_EQ(read_text_file(out.path() + "/tokenizer.json"), "{}");
  EXPECT_FALSE(std::filesystem::exists(out.path() + "/pytorch_model.bin"));
}

TEST(RoundedFolder, AHeadOfItsOwnIsInt8) {
  PlainCheckpoint checkpoint(DType::kBFloat16);
  checkpoint.config["tie_word_embeddings"] = false;
  checkpoint.shapes["lm_head.weight"] = {9, 64};
  const TempDir out;
  const std::string model = checkpoint.write();
  quantize(model, out.path(), RoundedFormat::kFp8);
  const WeightStore before(model), after(out.path(), quantization_of(out.path()));
  expect_same_codes(after.get("lm_head.weight", {9, 64}), before.get("lm_head.weight", {9, 64}),
                    RoundedFormat::kInt8);
}

TEST(RoundedFolder, WhatItCannotDoIsRefusedBeforeAnythingIsWritten) {
  const PlainCheckpoint checkpoint(DType::kBFloat16);
  const std::string model = checkpoint.write();
  const TempDir out;
  const auto refusal = [&](const std::string& from, const std::string& to) {
    const Error error = error_of([&] { quantize(from, to, RoundedFormat::kInt8); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_EQ(refusal(model, model),
            model + ": is there already and not an empty folder; remove it or name another");
  EXPECT_NE(refusal(model + "/tokenizer.json", out.path()).find("is no folder"), std::string::npos);
  EXPECT_NE(refusal(model + "/nowhere", out.path()).find("it is not there"), std::string::npos);
  std::filesystem::create_directory(out.path() + "/killed");
  out.write("killed/model.safetensors.12345678.tmp", "");
  EXPECT_EQ(refusal(model, out.path() + "/killed"),
            out.path() +
                "/killed: holds model.safetensors.12345678.tmp, which is left of a run that was "
                "killed; remove the folder, or name another");
  quantize(model, out.path() + "/a", RoundedFormat::kInt8);
  EXPECT_EQ(refusal(out.path() + "/a", out.path() + "/b"),
            out.path() + "/a: is quantised already; take the model as it was before");
  EXPECT_FALSE(std::filesystem::exists(out.path() + "/b"));
}

TEST(RoundedFolder, GgufFilesAreRefusedWithWhatToDo) {
  using testing::GgufWriter;
  const TempDir dir, out;
  const auto refusal = [&](uint32_t type, size_t bytes, bool as_folder) {
    const std::string file =
        dir.write("model.gguf",
                  GgufWriter().tensor("a.weight", type, {1, 32}, testing::zeros(bytes)).bytes());
    const std::string model = as_folder ? dir.path() : file;
    const Error error = error_of([&] { quantize(model, out.path(), RoundedFormat::kInt8); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return std::string(error.what()).substr(model.size());
  };
  for (const bool as_folder : {false, true}) {
    EXPECT_EQ(refusal(GgufWriter::kF16, 64, as_folder),
              ": is a GGUF file, and only of folders quantised ones are made: round it while it is "
              "loaded, with --quantization");
    EXPECT_EQ(refusal(GgufWriter::kQ8_0, 34, as_folder),
              ": is a GGUF file that is quantised already, to Q8_0: it can be used as it is");
  }
}

// It goes by the config's flag, as loading does, and by names that loading knows.
TEST(RoundedFolder, ATiedHeadIsMadeFromTheModelsOwnTable) {
  PlainCheckpoint checkpoint(DType::kBFloat16);
  checkpoint.shapes["lm_head.weight"] = {9, 64};
  checkpoint.shapes["model.layers.9.embed_tokens.weight"] = {9, 64};  // of a prediction layer
  const std::string model = checkpoint.write();
  const WeightStore before(model);
  const auto head_of = [&](const char* from) {
    const TempDir out;
    quantize(model, out.path(), RoundedFormat::kInt4);
    const WeightStore after(out.path(), quantization_of(out.path()));
    expect_same_codes(after.get("lm_head.weight", {9, 64}), before.get(from, {9, 64}),
                      RoundedFormat::kInt8);
  };
  head_of("model.embed_tokens.weight");
  checkpoint.config["tie_word_embeddings"] = false;
  checkpoint.dir.write("config.json", checkpoint.config.dump());
  head_of("lm_head.weight");
  checkpoint.config.erase("tie_word_embeddings");  // the text part says it
  checkpoint.dir.write("config.json", checkpoint.config.dump());
  head_of("model.embed_tokens.weight");
  checkpoint.config.erase("text_config");
  checkpoint.dir.write("config.json", checkpoint.config.dump());
  head_of("lm_head.weight");
}

TEST(RoundedFolder, ATextPartIsNotTiedAgainWhereItDoesNotSaySo) {
  PlainCheckpoint checkpoint(DType::kBFloat16);
  checkpoint.config = {{"text_config", {{"hidden_size", 64}}}};
  const TempDir out;
  quantize(checkpoint.write(), out.path(), RoundedFormat::kInt8);
  const Json config = Json::parse(std::ifstream(out.path() + "/config.json"));
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["text_config"]["tie_word_embeddings"], false);
  EXPECT_EQ(config["text_config"]["hidden_size"], 64);
}

TEST(RoundedFolder, ShapesOfNothingMayBeHuge) {
  PlainCheckpoint checkpoint(DType::kBFloat16);
  const TempDir plain, out;
  const std::string model = checkpoint.write();
  const int64_t expected = quantize(model, plain.path(), RoundedFormat::kInt8).num_parameters;
  const std::string file = read_text_file(model + "/model.safetensors", 1 << 20);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  Json header = Json::parse(file.substr(8, size));
  header["a.experts.empty"] = {{"dtype", "BF16"},
                               {"shape", {0, int64_t{1} << 62, int64_t{1} << 62}},
                               {"data_offsets", {0, 0}}};
  checkpoint.dir.write("model.safetensors",
                       testing::safetensors_bytes(header.dump(), file.substr(8 + size)));
  EXPECT_EQ(quantize(model, out.path(), RoundedFormat::kInt8).num_parameters, expected);
}

TEST(RoundedFolder, NamesThatWouldBeWrittenTwiceAreRefused) {
  const TempDir out;
  const auto refusal = [&](const std::string& model) {
    const Error error = error_of([&] { quantize(model, out.path(), RoundedFormat::kInt8); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_TRUE(std::filesystem::is_empty(out.path()));
    return std::string(error.what());
  };
  PlainCheckpoint beside(DType::kBFloat16);
  beside.shapes["model.layers.0.self_attn.q_proj.weight_scale"] = {13, 2};
  const std::string model = beside.write();
  EXPECT_EQ(refusal(model),
            model +
                ": model.layers.0.self_attn.q_proj.weight_scale would be written twice: two "
                "files have it, or it stands beside the matrix that gets a tensor of this "
                "name; remove one");
  PlainCheckpoint shards(DType::kBFloat16);
  shards.write();
  const std::string folder = shards.dir.path();
  std::filesystem::copy_file(folder + "/model.safetensors", folder + "/a.safetensors");
  std::filesystem::rename(folder + "/model.safetensors", folder + "/b.safetensors");
  shards.dir.write("model.safetensors.index.json",
                   R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
  EXPECT_NE(refusal(folder).find("model.embed_tokens.weight would be written twice"),
            std::string::npos);
}

TEST(RoundedFolder, WhatEndsItLeavesTheFolderAsItWas) {
  const PlainCheckpoint checkpoint(DType::kBFloat16);
  const TempDir out;
  const std::string model = checkpoint.write();
  // Which takes several calls to copy.
  constexpr uintmax_t kBytes = 20 << 20;
  std::filesystem::resize_file(model + "/tokenizer.json", kBytes);
  int num_calls = 0;
  const auto count = [&](int64_t, int64_t) { ++num_calls; };
  write_rounded_folder(model, out.path() + "/all", RoundedFormat::kInt4, 1, count);
  EXPECT_GE(num_calls, static_cast<int>(checkpoint.shapes.size()) + 2);
  EXPECT_EQ(std::filesystem::file_size(out.path() + "/all/tokenizer.json"), kBytes);
  std::filesystem::remove_all(out.path() + "/all");
  for (int nth = 1; nth <= num_calls; ++nth) {
    for (const char* inside : {"", "/new/folder"}) {
      int left = nth;
      const auto stop = [&](int64_t, int64_t) {
        if (--left == 0) throw std::runtime_error("stopped");
      };
      EXPECT_THROW(write_rounded_folder(model, out.path() + inside, RoundedFormat::kInt4, 2, stop),
                   std::runtime_error);
      EXPECT_TRUE(std::filesystem::is_empty(out.path()));
    }
  }
}

TEST(RoundedFolder, ANumberThatIsNoneIsToldWithItsFile) {
  const PlainCheckpoint checkpoint(DType::kFloat32);
  const std::string model = checkpoint.write();
  const TempDir out;
  const std::string path = model + "/model.safetensors";
  std::string file = read_text_file(path, 1 << 20);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const Json header = Json::parse(file.substr(8, size));
  const char* const name = "model.layers.0.self_attn.q_proj.weight";
  const size_t begin = header[name]["data_offsets"][0];
  file.replace(8 + size + begin + 3 * 64 * 4, 4, "\xff\xff\xff\xff", 4);
  checkpoint.dir.write("model.safetensors", file);
  const Error error = error_of([&] { quantize(model, out.path(), RoundedFormat::kInt4); });
  EXPECT_EQ(std::string(error.what()), path + ": tensor " + name +
                                           ": row 3 has a number that is NaN or infinite; download "
                                           "the file again, or use the model without rounding it");
}

// A file that can't be copied comes after the weights.
TEST(RoundedFolder, AFailureAfterTheWeightsLeavesTheFolderAsItWas) {
  const PlainCheckpoint checkpoint(DType::kBFloat16);
  const TempDir out;
  const std::string model = checkpoint.write();
  // Written by then, by somebody else.
  const auto write_other = [&](int64_t, int64_t) { out.write("tokenizer.json", "theirs"); };
  EXPECT_EQ(error_of([&] {
              write_rounded_folder(model, out.path(), RoundedFormat::kInt8, 1, write_other);
            }).code(),
            ErrorCode::kIo);
  EXPECT_EQ(read_text_file(out.path() + "/tokenizer.json"), "theirs");
  std::filesystem::remove(out.path() + "/tokenizer.json");
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

}  // namespace
}  // namespace nanovllm
