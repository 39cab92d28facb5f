// Decoded blocks against gguf-py's, tests/data/ggml_formats.gguf (tools/make_ggml_goldens.py).
#include "io/ggml_formats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/code_format_testing.h"
#include "base/testing.h"
#include "io/gguf.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;

constexpr uint32_t kQ4_1 = 3, kQ6K = 14, kMxfp4 = 39;

struct Golden {
  Golden() : file(test::source_path("tests/data/ggml_formats.gguf")) {}
  const GgufTensor& tensor(const std::string& name) const {
    return *std::ranges::find(file.tensors(), name, &GgufTensor::name);
  }
  Gguf file;
};

std::unique_ptr<MatrixDecoder> decoder_of(const GgufTensor& tensor) {
  return make_ggml_decoder(*find_ggml_format(tensor.type), tensor.data, tensor.shape[0],
                           tensor.shape[1], fmt::format("tensor {}", tensor.name));
}

TEST(GgmlFormats, EveryTypeDecodesToThePythonPackagesBits) {
  const Golden golden;
  std::set<uint32_t> types;
  for (const GgufTensor& tensor : golden.file.tensors()) {
    if (tensor.name.ends_with(".float32")) continue;
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(ggml_type_name(tensor.type), tensor.name);
    types.insert(tensor.type);
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    std::vector<float> expected(static_cast<size_t>(rows * cols)), decoded(expected.size());
    const GgufTensor& floats = golden.tensor(std::string(tensor.name) + ".float32");
    ASSERT_EQ(floats.shape, tensor.shape);
    std::memcpy(expected.data(), floats.data, expected.size() * sizeof(float));
    const auto decoder = decoder_of(tensor);
    for (int64_t row = 0; row < rows; ++row) {
      decoder->decode(row, 0, cols, decoded.data() + row * cols);
    }
    EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), expected.size() * sizeof(float)), 0);
    std::minstd_rand random(tensor.type);
    for (int i = 0; i < 100; ++i) {  // parts that begin and end inside of blocks
      const int64_t row = static_cast<int64_t>(random()) % rows;
      const int64_t col = static_cast<int64_t>(random()) % cols;
      const int64_t count = static_cast<int64_t>(random()) % (cols - col + 1);
      std::vector<float> part(static_cast<size_t>(count) + 1, 7.0f);
      decoder->decode(row, col, count, part.data());
      ASSERT_EQ(std::memcmp(part.data(), expected.data() + row * cols + col,
                            static_cast<size_t>(count) * sizeof(float)),
                0);
      ASSERT_EQ(part.back(), 7.0f);
    }
  }
  EXPECT_EQ(types.size(), 13u);
}

// Random bytes are any code and any scale.
TEST(GgmlFormats, CodesAndScalesDecodeToTheSameBits) {
  std::minstd_rand random(1);
  for (uint32_t type = 0; type < 64; ++type) {
    const GgmlFormat* format = find_ggml_format(type);
    if (format == nullptr || format->plain) continue;
    SCOPED_TRACE(format->name);
    constexpr int64_t kRows = 3;
    const int64_t cols = 7 * format->block_elements;
    std::vector<uint8_t> data;
    while (static_cast<int64_t>(data.size()) < kRows * 7 * format->block_bytes) {
      std::vector<uint8_t> block(static_cast<size_t>(format->block_bytes));
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(random() >> 8);
      std::vector<float> numbers(static_cast<size_t>(format->block_elements));
      if (std::isfinite(format->decode(block.data(), numbers.data()))) {
        data.insert(data.end(), block.begin(), block.end());
      }
    }
    const auto decoder = make_ggml_decoder(*format, data.data(), kRows, cols, "t");
    test::expect_codes_decode_the_same(*decoder, kRows, cols);
  }
}

TEST(GgmlFormats, EveryTypeHasTheLayoutOfItsCodes) {
  const auto layout = [](const char* name) {
    for (uint32_t type = 0; type < 64; ++type) {
      const GgmlFormat* format = find_ggml_format(type);
      if (format == nullptr || format->name != std::string(name)) continue;
      const CodeFormat& codes = find_ggml_codes(type)->format;
      return fmt::format("{} {} {} {}", to_string(codes.layout), codes.code_bits,
                         codes.group_columns, codes.super_columns);
    }
    return std::string();
  };
  for (const char* name : {"Q4_0", "Q4_1", "IQ4_NL", "MXFP4"}) {
    EXPECT_EQ(layout(name), "group 4 32 0") << name;
  }
  EXPECT_EQ(layout("Q5_0"), "group 5 32 0");
  EXPECT_EQ(layout("Q5_1"), "group 5 32 0");
  EXPECT_EQ(layout("Q8_0"), "byte 8 32 0");
  EXPECT_EQ(layout("Q2_K"), "super 4 16 256");
  EXPECT_EQ(layout("Q3_K"), "super 4 16 256");
  EXPECT_EQ(layout("Q4_K"), "super 4 32 256");
  EXPECT_EQ(layout("Q5_K"), "super 5 32 256");
  EXPECT_EQ(layout("Q6_K"), "super 6 16 256");
  EXPECT_EQ(layout("IQ4_XS"), "super 4 32 256");
}

TEST(GgmlFormats, CodesOfTwoAndThreeBitsTakeFour) {
  EXPECT_EQ(wider_code_bits("Q2_K"), 4);
  EXPECT_EQ(wider_code_bits("Q3_K"), 4);
  for (const char* name :
       {"Q4_K", "Q4_0", "IQ4_XS", "MXFP4", "Q5_K", "Q6_K", "Q8_0", "BF16", "?"}) {
    EXPECT_EQ(wider_code_bits(name), 0) << name;
  }
}

TEST(GgmlFormats, AScaleThatIsNoNumberIsRefusedWithItsPlace) {
  const Golden golden;
  const auto error_with = [&](uint32_t type, size_t at, const std::string& bytes) {
    GgufTensor tensor = *std::ranges::find(golden.file.tensors(), type, &GgufTensor::type);
    std::vector<std::byte> copy(tensor.data, tensor.data + tensor.bytes);
    std::memcpy(copy.data() + at, bytes.data(), bytes.size());
    tensor.data = copy.data();
    std::vector<float> row(static_cast<size_t>(tensor.shape[1]));
    const auto decoder = decoder_of(tensor);
    decoder->decode(0, 0, 32, row.data());  // the wrong block is none of these
    const int64_t groups = tensor.shape[1] / decoder->code_format()->group_columns;
    std::vector<GroupScale> scales(static_cast<size_t>(groups));
    decoder->read_scales(0, 0, 1, scales.data());
    const std::string said =
        error_of([&] { decoder->decode(1, 0, tensor.shape[1], row.data()); }).what();
    EXPECT_EQ(error_of([&] { decoder->read_scales(1, 0, groups, scales.data()); }).what(), said);
    return said;
  };
  constexpr size_t kRow = 3 * 20;  // of Q4_1
  const std::string infinity("\x00\x7c", 2), nan("\x01\xfe", 2);
  EXPECT_EQ(error_with(kQ4_1, kRow + 20, infinity),
            "tensor Q4_1: block 1 of row 1 has a scale that is no number; download the file again");
  EXPECT_NE(error_with(kQ4_1, kRow + 42, nan).find("block 2 of row 1"), std::string::npos);
  EXPECT_NE(error_with(kQ6K, 2 * 210 + 208, nan).find("tensor Q6_K: block 0 of row 1"),
            std::string::npos);
  EXPECT_NE(error_with(kMxfp4, 3 * 17, "\xff").find("tensor MXFP4: block 0 of row 1"),
            std::string::npos);
}

// An exponent e and a doubled value v make 2^(e - 128) * v, and float32 ends below 2^128.
TEST(GgmlFormats, Mxfp4IsRefusedOnlyWhereANumberOverflows) {
  const auto decode = [](uint8_t exponent, uint8_t code) {
    std::vector<uint8_t> block(17, 0);
    block[0] = exponent;
    block[1] = code;
    float first = 0;
    GroupScale scale;
    const auto decoder = make_ggml_decoder(*find_ggml_format(kMxfp4), block.data(), 1, 32, "m");
    decoder->decode(0, 0, 1, &first);
    decoder->read_scales(0, 0, 1, &scale);
    return first;
  };
  EXPECT_EQ(decode(252, 7), 12 * 0x1p124f);
  EXPECT_EQ(decode(253, 5), 6 * 0x1p125f);
  EXPECT_EQ(decode(255, 9), -0x1p127f);
  for (const auto& [exponent, code] : {std::pair{253, 6}, {253, 15}, {254, 4}, {255, 2}}) {
    EXPECT_EQ(error_of([&, e = exponent, c = code] {
                decode(static_cast<uint8_t>(e), static_cast<uint8_t>(c));
              }).code(),
              ErrorCode::kCorruptData)
        << exponent << " " << code;
  }
}

TEST(GgmlFormats, TypesThatCannotBeReadHaveNames) {
  EXPECT_EQ(find_ggml_format(16), nullptr);
  EXPECT_EQ(ggml_type_name(16), "IQ2_XXS");
  EXPECT_EQ(ggml_type_name(31), "Q4_0_4_4");
  EXPECT_EQ(ggml_type_name(40), "NVFP4");
  EXPECT_EQ(ggml_type_name(144), "IQ4_KS");
  EXPECT_EQ(ggml_type_name(202), "repacked Q4_0");
  EXPECT_EQ(ggml_type_name(233), "Q6_0_R4");
  EXPECT_EQ(ggml_type_name(344), "repacked IQ4_KS");
  EXPECT_EQ(find_ggml_format(400), nullptr);
  EXPECT_EQ(ggml_type_name(400), "400");
}

}  // namespace
}  // namespace nanovllm
