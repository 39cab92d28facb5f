#include "io/quantized_weights.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/code_format_testing.h"
#include "base/testing.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/testing.h"
#include "io/weight_store.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::TempDir;

std::optional<QuantizationConfig> config_of(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Json document = parse_json(read_text_file(path, 1 << 20), path);
  return load_quantization_config(JsonFields(document, path), folder);
}

std::string golden_folder(const std::string& name) {
  return test::source_path("tests/data/quantized/") + name;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder(""))) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<SafetensorsEntry> entries_of(const std::string& path) {
  const MappedFile file(path);
  return parse_safetensors_header(file.bytes(), path);
}

// The elements that the store says, and that the package says.
void expect_equal(const StoredTensor& stored, int64_t row, int64_t col, int64_t count,
                  const float* expected) {
  std::vector<float> values(static_cast<size_t>(count));
  stored.decoder->decode(row, col, count, values.data());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[col + i]))
        << "row " << row << ", column " << col + i << ": " << values[i] << " for "
        << expected[col + i];
  }
}

class QuantizedGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedGolden, DecodesToThePackagesNumbersBitForBit) {
  const std::string folder = golden_folder(GetParam());
  const WeightStore store(folder, config_of(folder)), expected(folder + "/expected");
  std::mt19937 random(7);
  for (const SafetensorsEntry& entry : entries_of(folder + "/expected/model.safetensors")) {
    SCOPED_TRACE(entry.name);
    const StoredTensor matrix = store.get(entry.name, entry.shape);
    const auto* values = static_cast<const float*>(expected.get(entry.name, entry.shape).data);
    const int64_t rows = entry.shape[0], cols = entry.shape[1];
    if (matrix.decoder == nullptr) {  // a plain one among the others
      EXPECT_EQ(std::memcmp(matrix.data, values, static_cast<size_t>(rows * cols) * 4), 0);
      continue;
    }
    for (int64_t row = 0; row < rows; ++row) {
      expect_equal(matrix, row, 0, cols, values + row * cols);
      for (int i = 0; i < 20; ++i) {
        const int64_t begin = static_cast<int64_t>(random()) % cols;
        const int64_t count = static_cast<int64_t>(random()) % (cols - begin + 1);
        expect_equal(matrix, row, begin, count, values + row * cols);
      }
    }
    if (matrix.decoder->code_format() != nullptr) {
      test::expect_codes_decode_the_same(*matrix.decoder, rows, cols);
    }
  }
  EXPECT_TRUE(store.unused().empty()) << store.unused()[0];
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedGolden, ::testing::ValuesIn(golden_names()),
                         [](const auto& test) { return test.param; });

// "group 4/128 float16 zero", or why there is none.
std::string layout_of(const QuantizedMatrix& matrix) {
  const CodeFormat* codes = matrix.decoder->code_format();
  EXPECT_EQ(codes == nullptr, !matrix.no_layout_because.empty());
  if (codes == nullptr) return matrix.no_layout_because;
  const char* const scales = codes->scales == ScaleKind::kFloat16    ? "float16"
                             : codes->scales == ScaleKind::kBFloat16 ? "bfloat16"
                                                                     : "float32";
  std::string text = fmt::format("{} {}/{} {}", to_string(codes->layout), codes->code_bits,
                                 codes->group_columns, scales);
  if (codes->factor != 1) text += codes->divides_by_factor ? " over factor" : " times factor";
  if (codes->offset == CodeFormat::Offset::kZero) text += " zero";
  return text;
}

TEST(QuantizedWeights, FormatsCountAllTheBytesOfAMatrix) {
  const std::string folder = golden_folder("mixed");
  const WeightStore store(folder, config_of(folder));
  int64_t bytes = 0, in_file = 0;
  std::vector<std::string> names;
  for (const WeightFormat& format : store.formats()) {
    bytes += format.bytes;
    names.push_back(format.name + " " + std::to_string(format.num_tensors));
  }
  for (const auto& entry : entries_of(folder + "/model.safetensors")) {
    in_file += static_cast<int64_t>(entry.end - entry.begin);
  }
  EXPECT_EQ(bytes, in_file);
  EXPECT_EQ(store.total_bytes(), in_file);
  std::ranges::sort(names);
  // Scales of activations and of the KV cache are plain.
  EXPECT_EQ(names, (std::vector<std::string>{"BF16 1", "F32 5", "INT4 2", "INT8 1"}));
}

// A checkpoint whose parts can be spoiled one by one.
struct Checkpoint {
  explicit Checkpoint(const std::string& name) {
    const std::string folder = golden_folder(name), path = folder + "/model.safetensors";
    config = Json::parse(std::ifstream(folder + "/config.json"));
    const MappedFile file(path);
    for (const SafetensorsEntry& entry : parse_safetensors_header(file.bytes(), path)) {
      tensors[entry.name] = {
          entry.type, entry.shape,
          std::string(reinterpret_cast<const char*>(file.bytes().data()) + entry.begin,
                      entry.end - entry.begin)};
    }
  }

  // Beginning at an odd address, as the format allows.
  std::string write(const TempDir& dir) const {
    nlohmann::ordered_json header;
    header["odd.k_scale"] = {{"dtype", "BOOL"}, {"shape", {1}}, {"data_offsets", {0, 1}}};
    std::string data(1, '\0');
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.type},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
      data += tensor.data;
    }
    dir.write("model.safetensors", testing::safetensors_bytes(header.dump(), data));
    dir.write("config.json", config.dump());
    return dir.path();
  }

  // What loading says, and decoding every element of its matrix.
  Error error(const std::string& module = "model.layers.0.mlp.up_proj") const {
    const TempDir dir;
    const std::string folder = write(dir);
    return error_of([&] { decode_all(folder, module); });
  }

  std::string layout() const {
    const TempDir dir;
    std::string text;
    for_each_matrix(write(dir), "model.layers.0.mlp.up_proj",
                    [&](const QuantizedMatrix& matrix) { text = layout_of(matrix); });
    return text;
  }

  // By codes and scales as well, where it has them.
  static void decode_all(const std::string& folder,
                         const std::string& module = "model.layers.0.mlp.up_proj") {
    for_each_matrix(folder, module, [](const QuantizedMatrix& matrix) {
      std::vector<float> row(static_cast<size_t>(matrix.cols));
      for (int64_t r = 0; r < matrix.rows; ++r) {
        matrix.decoder->decode(r, 0, matrix.cols, row.data());
      }
      if (matrix.decoder->code_format() == nullptr) return;
      test::expect_codes_decode_the_same(*matrix.decoder, matrix.rows, matrix.cols);
    });
  }

  template <typename Use>
  static void for_each_matrix(const std::string& folder, const std::string& module, Use use) {
    const MappedFile file(folder + "/model.safetensors");
    RawTensors raw;
    for (const auto& entry : parse_safetensors_header(file.bytes(), "file")) {
      raw[entry.name] = {"file", entry.type, entry.shape,
                         file.bytes().subspan(entry.begin, entry.end - entry.begin)};
    }
    for (const QuantizedMatrix& matrix : find_quantized_matrices(raw, *config_of(folder))) {
      if (matrix.name == module + ".weight") use(matrix);
    }
  }

  struct Tensor {
    std::string type;
    std::vector<int64_t> shape;
    std::string data;
  };
  Tensor& part(const std::string& name) { return tensors["model.layers.0.mlp.up_proj." + name]; }

  Json config;
  std::map<std::string, Tensor> tensors;
};

TEST(QuantizedWeights, EveryFormatHasTheLayoutOfItsCodes) {
  const auto layout = [](const std::string& name) { return Checkpoint(name).layout(); };
  EXPECT_EQ(layout("awq"), "group 4/32 float16 zero");
  EXPECT_EQ(layout("awq_channel"), "group 4/128 float16 zero");
  EXPECT_EQ(layout("fp8_block"), "groups have 24 columns, no multiple of 16");
  EXPECT_EQ(layout("fp8_channel"), "byte 8/64 bfloat16");
  EXPECT_EQ(layout("fp8_fine_grained"), "byte 8/32 float32");
  EXPECT_EQ(layout("fp8_per_tensor"), "byte 8/32 float32");
  EXPECT_EQ(layout("fp8_tensor"), "byte 8/24 float32");
  EXPECT_EQ(layout("gptq_channel"), "group 4/128 float16 zero");
  EXPECT_EQ(layout("gptq_int8_v1"), "byte 8/64 float16 zero");
  EXPECT_EQ(layout("gptq_v1"), "group 4/32 float16 zero");
  EXPECT_EQ(layout("gptq_v2_g_idx"), "groups of columns are shuffled (g_idx)");
  EXPECT_EQ(layout("int8_channel"), "byte 8/64 bfloat16");
  EXPECT_EQ(layout("int8_group_zeros"), "byte 8/32 bfloat16 zero");
  EXPECT_EQ(layout("int8_tensor_zeros"), "byte 8/24 float32 zero");
  EXPECT_EQ(layout("modelopt_fp8"), "byte 8/24 float32");
  EXPECT_EQ(layout("modelopt_nvfp4"), "group 4/16 bfloat16 times factor");
  EXPECT_EQ(layout("nvfp4"), "group 4/16 bfloat16 over factor");
  EXPECT_EQ(layout("pack_int4_channel"), "group 4/128 bfloat16");
  EXPECT_EQ(layout("pack_int4_g_idx"), "groups of columns are shuffled (g_idx)");
  EXPECT_EQ(layout("pack_int4_group"), "group 4/32 bfloat16");
  EXPECT_EQ(layout("pack_int4_zeros"), "group 4/32 float16 zero");
  EXPECT_EQ(layout("pack_int8_zeros"), "byte 8/32 bfloat16 zero");
}

// Scales of float32 have a layout where a type of 16 bits holds each of them.
TEST(QuantizedWeights, ScalesOfFloat32HaveALayoutWhereNothingIsLost) {
  const auto layout = [](float scale, const char* name = "pack_int4_group") {
    Checkpoint checkpoint(name);
    std::vector<float> scales(48, 0.5f);
    scales[31] = scale;
    auto& part = checkpoint.part("weight_scale");
    part.type = "F32";
    part.data.assign(reinterpret_cast<const char*>(scales.data()), 4 * scales.size());
    return checkpoint.layout();
  };
  EXPECT_EQ(layout(0x1p-100f), "group 4/32 bfloat16");
  EXPECT_EQ(layout(1.0f + 0x1p-7f), "group 4/32 bfloat16");
  EXPECT_EQ(layout(1.0f + 0x1p-10f), "group 4/32 float16");
  EXPECT_EQ(layout(65504), "group 4/32 float16");
  EXPECT_EQ(layout(0x1p-24f * 257), "group 4/32 float16");
  const std::string none = "scales are float32 that neither float16 nor bfloat16 holds";
  EXPECT_EQ(layout(1.0f + 0x1p-11f), none);
  EXPECT_EQ(layout(65535), none);
  EXPECT_EQ(layout(0x1p-25f * 257), none);
  EXPECT_EQ(layout(1.0f + 0x1p-11f, "int8_group_zeros"), "byte 8/32 float32 zero");
}

// AWQ and GPTQ have zero points in any case, which are all the same if codes are symmetric.
TEST(QuantizedWeights, AZeroPointThatAllGroupsShareIsInTheValuesOfCodes) {
  const auto with_zeros = [](const char* name, int zeros) {
    Checkpoint checkpoint(name);
    std::string& data = checkpoint.part("qzeros").data;
    data.assign(data.size(), static_cast<char>(zeros));
    const TempDir dir;
    Checkpoint::decode_all(checkpoint.write(dir));
    return checkpoint.layout();
  };
  EXPECT_EQ(with_zeros("awq", 0x88), "group 4/32 float16");
  EXPECT_EQ(with_zeros("awq", 0x00), "group 4/32 float16");
  EXPECT_EQ(with_zeros("awq", 0x77), "group 4/32 float16 zero");
  EXPECT_EQ(with_zeros("gptq_v1", 0x77), "group 4/32 float16");
  EXPECT_EQ(with_zeros("gptq_int8_v1", 0x7f), "byte 8/64 float16");
  EXPECT_EQ(with_zeros("gptq_int8_v1", 0x80), "byte 8/64 float16 zero");
}

TEST(QuantizedWeights, Mxfp4HasALayout) {
  std::mt19937 random(3);
  std::vector<std::byte> codes(size_t{2} * 3 * 4 * 16), scales(size_t{2} * 3 * 4);
  for (std::byte& byte : codes) byte = static_cast<std::byte>(random() & 255);
  for (std::byte& byte : scales) byte = static_cast<std::byte>(random() % 253);
  scales[0] = std::byte{0};
  const RawTensors tensors = {{"experts.down_proj_blocks", {"file", "U8", {2, 3, 4, 16}, codes}},
                              {"experts.down_proj_scales", {"file", "U8", {2, 3, 4}, scales}}};
  const auto matrices =
      find_quantized_matrices(tensors, {.method = QuantizationMethod::kMxfp4, .where = "config"});
  ASSERT_EQ(matrices.size(), 1u);
  EXPECT_EQ(layout_of(matrices[0]), "group 4/32 bfloat16");
  test::expect_codes_decode_the_same(*matrices[0].decoder, 6, 128);
}

// 6 times 2^125 is a float32, and 6 times 2^126 is none.
TEST(QuantizedWeights, AScaleThatMakesWeightsInfiniteIsRefused) {
  const auto decode = [](uint8_t exponent) {
    const std::vector<std::byte> codes(16, std::byte{0x77}), scales(1, std::byte{exponent});
    const RawTensors tensors = {{"experts.down_proj_blocks", {"file", "U8", {1, 1, 1, 16}, codes}},
                                {"experts.down_proj_scales", {"file", "U8", {1, 1, 1}, scales}}};
    const auto matrices =
        find_quantized_matrices(tensors, {.method = QuantizationMethod::kMxfp4, .where = "config"});
    float first = 0;
    matrices[0].decoder->decode(0, 0, 1, &first);
    GroupScale scale;
    matrices[0].decoder->read_scales(0, 0, 1, &scale);
    EXPECT_EQ(first, 6 * scale.scale);
    return first;
  };
  EXPECT_EQ(decode(252), 6 * 0x1p125f);
  for (const uint8_t exponent : {253, 254, 255}) {
    const Error error = error_of([&] { decode(exponent); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_NE(std::string(error.what()).find("the scale of row 0, block 0 is "), std::string::npos);
  }
}

TEST(QuantizedWeights, MatricesWithoutLayoutAreCountedByReason) {
  const std::string folder = golden_folder("gptq_v2_g_idx");
  const auto matrices = WeightStore(folder, config_of(folder)).without_layout();
  ASSERT_EQ(matrices.size(), 1u);
  EXPECT_EQ(matrices[0].because, "groups of columns are shuffled (g_idx)");
  EXPECT_EQ(matrices[0].num_matrices, 1);
  const std::string other = golden_folder("gptq_v1");
  EXPECT_TRUE(WeightStore(other, config_of(other)).without_layout().empty());
}

TEST(QuantizedWeights, AMatrixMayLieInSeveralFiles) {
  const std::string folder = golden_folder("pack_int4_group");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const Checkpoint whole("pack_int4_group");
  const TempDir dir;
  Json index;
  for (const auto& [tensor, content] : whole.tensors) {
    const std::string file = tensor + ".safetensors";
    const Json header = {{tensor,
                          {{"dtype", content.type},
                           {"shape", content.shape},
                           {"data_offsets", {0, content.data.size()}}}}};
    dir.write(file, testing::safetensors_bytes(header.dump(), content.data));
    index["weight_map"][tensor] = file;
  }
  dir.write("model.safetensors.index.json", index.dump());
  const WeightStore store(dir.path(), config_of(folder)), expected(folder + "/expected");
  const StoredTensor matrix = store.get(name, {24, 64});
  const auto* values = static_cast<const float*>(expected.get(name, {24, 64}).data);
  for (int64_t row = 0; row < 24; ++row) expect_equal(matrix, row, 0, 64, values + row * 64);
  matrix.source->release();
  expect_equal(matrix, 5, 0, 64, values + int64_t{5} * 64);
  matrix.source->check_size();
  std::filesystem::resize_file(dir.path() + "/model.layers.0.mlp.up_proj.weight_scale.safetensors",
                               8);
  EXPECT_EQ(error_of([&] { matrix.source->check_size(); }).code(), ErrorCode::kCorruptData);
}

TEST(QuantizedWeights, TensorsMayBeginAtAnyAddress) {
  for (const std::string& name : golden_names()) {
    const TempDir dir;
    EXPECT_NO_THROW(Checkpoint::decode_all(Checkpoint(name).write(dir))) << name;
  }
}

TEST(QuantizedWeights, EveryPartIsNeededInItsTypeAndShape) {
  for (const std::string& name : golden_names()) {
    const Checkpoint whole(name);
    for (const auto& [tensor, content] : whole.tensors) {
      const std::string part = tensor.substr(tensor.rfind('.') + 1);
      const bool may_be_absent = part == "bias" || part == "input_scale" || part == "k_scale" ||
                                 part == "g_idx" || part == "weight_g_idx";
      const bool has_codes = part == "weight" || part == "weight_packed" || part == "qweight";
      const std::string module = tensor.substr(0, tensor.size() - part.size() - 1);
      if (!may_be_absent && !has_codes) {
        Checkpoint without = whole;
        without.tensors.erase(tensor);
        const std::string message = without.error(module).what();
        // Either name of FP8's scales will do.
        const std::string absent = part == "weight_scale_inv" ? module + ".weight_scale" : tensor;
        EXPECT_NE(message.find(absent + " is missing"), std::string::npos) << message;
      }
      const bool is_plain = part == "weight" && content.type == "F32";
      if (part == "bias" || part == "input_scale" || part == "k_scale" || is_plain) continue;
      Checkpoint of_other_type = whole;
      of_other_type.tensors[tensor].type = "BOOL";
      of_other_type.tensors[tensor].shape = {static_cast<int64_t>(content.data.size())};
      const Error error = of_other_type.error(module);
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData) << name << " " << tensor;
      EXPECT_NE(std::string(error.what()).find("tensor " + tensor), std::string::npos)
          << error.what();
    }
  }
}

TEST(QuantizedWeights, ShapesOfAnotherMatrixAreRefused) {
  const struct {
    const char* checkpoint;
    const char* part;
    std::vector<int64_t> shape;
    size_t bytes;
  } cases[] = {
      {"pack_int4_group", "weight_scale", {24, 1}, 48},
      {"pack_int4_group", "weight_scale", {2, 24}, 96},
      {"pack_int4_group", "weight_packed", {24, 9}, 864},
      {"pack_int4_group", "weight_packed", {24, 7}, 672},
      {"pack_int4_group", "weight_packed", {0, 8}, 0},
      {"nvfp4", "weight_packed", {24, 30}, 720},
      {"awq", "qweight", {0, 4}, 0},
      {"gptq_v1", "qweight", {8, 0}, 0},
      {"pack_int4_group", "weight_packed", {192}, 768},
      {"pack_int4_zeros", "weight_zero_point", {2, 3}, 24},
      {"pack_int4_g_idx", "weight_g_idx", {63}, 252},
      {"int8_channel", "weight", {25, 64}, 1600},
      {"int8_channel", "weight_scale", {24, 2}, 96},
      {"int8_group_zeros", "weight_zero_point", {24, 1}, 24},
      {"fp8_block", "weight_scale", {2, 3}, 12},
      {"fp8_block", "weight_scale", {3, 3, 1}, 18},
      {"nvfp4", "weight_scale", {24, 3}, 72},
      {"nvfp4", "weight_global_scale", {2}, 8},
      {"fp8_fine_grained", "weight_scale_inv", {3, 2}, 24},
      {"modelopt_nvfp4", "weight_scale_2", {8}, 32},
      {"awq", "qzeros", {2, 3}, 24},
      {"awq", "scales", {1, 32}, 64},
      {"gptq_v1", "qweight", {8, 31}, 992},
      {"gptq_v1", "qzeros", {1, 4}, 16},
      {"gptq_v1", "scales", {2, 33}, 132},
      {"gptq_v1", "g_idx", {65}, 260},
  };
  for (const auto& bad : cases) {
    Checkpoint checkpoint(bad.checkpoint);
    checkpoint.part(bad.part).shape = bad.shape;
    checkpoint.part(bad.part).data.resize(bad.bytes);
    const Error error = checkpoint.error();
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_NE(std::string(error.what()).find("tensor model.layers.0.mlp.up_proj."),
              std::string::npos)
        << bad.checkpoint << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find("config.json, quantization_config it should be"),
              std::string::npos)
        << bad.checkpoint << ": " << error.what();
  }
}

TEST(QuantizedWeights, AShapeThatThePackedCodesDoNotHaveIsRefused) {
  for (const int64_t cols : {int64_t{56}, int64_t{65}, int64_t{0}, int64_t{-64}, INT64_MAX}) {
    Checkpoint checkpoint("pack_int4_group");
    std::memcpy(checkpoint.part("weight_shape").data.data() + 8, &cols, 8);
    EXPECT_EQ(checkpoint.error().code(), ErrorCode::kCorruptData) << cols;
  }
  for (const int64_t cols : {int64_t{57}, int64_t{64}}) {  // 8 words all the same
    Checkpoint checkpoint("pack_int4_group");
    std::memcpy(checkpoint.part("weight_shape").data.data() + 8, &cols, 8);
    const TempDir dir;
    EXPECT_NO_THROW(Checkpoint::decode_all(checkpoint.write(dir))) << cols;
  }
}

TEST(QuantizedWeights, ScalesThatAreNoNumberAreRefusedWhenTheyAreMet) {
  const struct {
    const char* checkpoint;
    const char* part;
    size_t offset;
    std::string bits;
    const char* message;
  } cases[] = {
      {"pack_int4_group", "weight_scale", 2 * (3 * 2 + 1), "\x80\x7f", "row 3, block 1 is inf"},
      {"pack_int4_group", "weight_scale", 0, "\xc0\x7f", "row 0, block 0 is nan"},
      {"fp8_fine_grained", "weight_scale_inv", 4 * 4, std::string("\0\0\x80\xff", 4),
       "row 16, block 1 is -inf"},
      {"nvfp4", "weight_scale", 5, "\x7f", "row 1, block 1 is nan"},
      {"nvfp4", "weight_global_scale", 0, std::string(4, '\0'), "row 0, block 0 is inf"},
      {"awq", "scales", 2 * 33, std::string("\0\x7c", 2), "row 1, block 1 is inf"},
      {"gptq_v2_g_idx", "scales", 2 * 34, std::string("\x01\x7e", 2), "row 2, block 1 is nan"},
  };
  for (const auto& bad : cases) {
    Checkpoint checkpoint(bad.checkpoint);
    checkpoint.part(bad.part).data.replace(bad.offset, bad.bits.size(), bad.bits);
    const Error error = checkpoint.error();
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_EQ(error.what(),
              fmt::format("file: tensor model.layers.0.mlp.up_proj.weight: the scale of {}; "
                          "download the file again",
                          bad.message))
        << bad.checkpoint;
  }
}

// As numbers and as codes: no layout has a code for NaN.
TEST(QuantizedWeights, CodesThatAreNaNAreRefusedWithTheirPlace) {
  for (const char* name : {"fp8_block", "fp8_channel", "fp8_fine_grained", "modelopt_fp8"}) {
    for (const char* code : {"\x7f", "\xff"}) {
      SCOPED_TRACE(name);
      Checkpoint checkpoint(name);
      auto& weight = checkpoint.part("weight");
      const int64_t cols = weight.shape[1];
      weight.data.replace(static_cast<size_t>(3 * cols + 9), 1, code);
      const TempDir dir;
      int num_matrices = 0;
      Checkpoint::for_each_matrix(
          checkpoint.write(dir), "model.layers.0.mlp.up_proj", [&](const QuantizedMatrix& matrix) {
            ++num_matrices;
            std::vector<float> row(static_cast<size_t>(cols));
            std::vector<uint8_t> codes(row.size());
            const auto refusal = [](auto call) {
              const Error error = error_of(call);
              EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
              return std::string(error.what());
            };
            const std::string expected =
                "file: tensor model.layers.0.mlp.up_proj.weight: the code of row 3, column 9 is "
                "NaN; download the file again";
            const MatrixDecoder& decoder = *matrix.decoder;
            EXPECT_EQ(refusal([&] { decoder.decode(3, 5, cols - 5, row.data()); }), expected);
            EXPECT_EQ(refusal([&] { decoder.read_codes(3, 5, cols - 5, codes.data()); }), expected);
            // Those beside it are numbers.
            decoder.decode(3, 0, 9, row.data());
            decoder.read_codes(3, 0, 9, codes.data());
            decoder.decode(3, 10, cols - 10, row.data());
            decoder.read_codes(3, 10, cols - 10, codes.data());
          });
      EXPECT_EQ(num_matrices, 1);
      weight.data.replace(static_cast<size_t>(3 * cols + 9), 1, code[0] < 0 ? "\xfe" : "\x7e");
      const TempDir largest;
      EXPECT_NO_THROW(Checkpoint::decode_all(checkpoint.write(largest)));
    }
  }
}

TEST(QuantizedWeights, GroupsOfColumnsThatDoNotExistAreRefused) {
  for (const int32_t group : {2, -1, INT32_MAX, INT32_MIN}) {
    for (const char* name : {"gptq_v2_g_idx", "pack_int4_g_idx"}) {
      Checkpoint checkpoint(name);
      const bool is_gptq = name[0] == 'g';
      std::memcpy(checkpoint.part(is_gptq ? "g_idx" : "weight_g_idx").data.data() + 40, &group, 4);
      if (!is_gptq && group == -1) {  // means that the columns are where they were
        const TempDir dir;
        EXPECT_NO_THROW(Checkpoint::decode_all(checkpoint.write(dir)));
        continue;
      }
      EXPECT_EQ(checkpoint.error().code(), ErrorCode::kCorruptData) << name << " " << group;
    }
  }
  // Of GPTQ's groups one may have more columns than another.
  Checkpoint uneven("gptq_v2_g_idx");
  for (size_t i = 0; i < 64; ++i) uneven.part("g_idx").data[4 * i] = i == 40;
  const TempDir dir;
  EXPECT_NO_THROW(Checkpoint::decode_all(uneven.write(dir)));
}

TEST(QuantizedWeights, WhatTheConfigContradictsIsRefused) {
  Checkpoint ignored("pack_int4_group");
  ignored.config["quantization_config"]["ignore"] = {"re:.*up_proj"};
  EXPECT_NE(std::string(ignored.error().what()).find("is quantised, but by"), std::string::npos);
  Checkpoint of_other_bits("pack_int4_group");
  of_other_bits.config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] =
      8;
  EXPECT_EQ(of_other_bits.error().code(), ErrorCode::kCorruptData);
  Checkpoint unpacked_zeros("pack_int4_zeros");
  unpacked_zeros.part("weight_zero_point") = {"I8", {20, 3}, std::string(60, '\0')};
  EXPECT_NE(std::string(unpacked_zeros.error().what()).find("it should be I32"), std::string::npos);
  Checkpoint twice("gptq_v1");
  twice.part("weight") = {"BF16", {1, 1}, "xx"};
  EXPECT_NE(std::string(twice.error().what())
                .find("qweight is there, and model.layers.0.mlp.up_proj.weight as well"),
            std::string::npos);
  Checkpoint e5m2("fp8_fine_grained");
  e5m2.part("weight").type = "F8_E5M2";
  EXPECT_EQ(e5m2.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(e5m2.error().what()).find("E5M2"), std::string::npos);
}

TEST(QuantizedWeights, OnlyBiasesOfZerosMayBeSurplus) {
  Checkpoint checkpoint("gptq_v1");
  const TempDir dir;
  const auto unused = [&] {
    checkpoint.write(dir);
    std::vector<std::string> names = WeightStore(dir.path(), config_of(dir.path())).unused();
    return names;
  };
  EXPECT_EQ(unused(), (std::vector<std::string>{"model.layers.0.mlp.up_proj.weight"}));
  auto& bias = checkpoint.part("bias");
  bias.type = "U8";
  bias.shape = {64};
  const Error error = error_of([&] { unused(); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(error.what()).find("up_proj.bias has dtype U8; only BF16, F16 and F32"),
            std::string::npos);
  bias.type = "F16";
  bias.shape = {32};
  bias.data.back() = 1;
  EXPECT_EQ(unused(), (std::vector<std::string>{"model.layers.0.mlp.up_proj.bias",
                                                "model.layers.0.mlp.up_proj.weight"}));
}

}  // namespace
}  // namespace nanovllm
