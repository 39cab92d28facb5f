#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::safetensors_bytes;

std::vector<SafetensorsEntry> parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), "file");
}

Error error_for(const std::string& header, size_t data_bytes) {
  const std::string bytes = safetensors_bytes(header, std::string(data_bytes, 'x'));
  return error_of([&] { parse(bytes); });
}

constexpr const char* kTwoTensors =
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
    R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}  )";

TEST(Safetensors, ListsTensorsInFileOrder) {
  const std::string header = kTwoTensors;
  const auto entries = parse(safetensors_bytes(header, std::string(20, 'x')));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, DType::kBFloat16);
  EXPECT_EQ(entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(entries[0].begin, 8 + header.size());
  EXPECT_EQ(entries[0].end, 8 + header.size() + 12);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].dtype, DType::kFloat32);
  EXPECT_EQ(entries[1].end, 8 + header.size() + 20);
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).empty());
  const auto entries =
      parse(safetensors_bytes(R"({"s":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
                              R"("e":{"dtype":"F32","shape":[0,18446744073709551],)"
                              R"("data_offsets":[2,2]}})",
                              "xx"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "s");
  EXPECT_TRUE(entries[0].shape.empty());
}

TEST(Safetensors, EveryTypeHasTheBytesOfItsElements) {
  const std::pair<const char*, size_t> types[] = {
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I8", 1},   {"U8", 1},  {"BOOL", 1},
      {"I16", 2},     {"U16", 2},     {"F16", 2},     {"BF16", 2}, {"I32", 4}, {"U32", 4},
      {"F32", 4},     {"I64", 8},     {"U64", 8},     {"F64", 8}};
  for (const auto& [name, size] : types) {
    for (const size_t bytes : {3 * size - 1, 3 * size, 3 * size + 1}) {
      const std::string header = std::string(R"({"w":{"dtype":")") + name +
                                 R"(","shape":[3],"data_offsets":[0,)" + std::to_string(bytes) +
                                 "]}}";
      if (bytes != 3 * size) {
        EXPECT_EQ(error_for(header, bytes).code(), ErrorCode::kCorruptData) << header;
        continue;
      }
      const auto entries = parse(safetensors_bytes(header, std::string(bytes, 'x')));
      ASSERT_EQ(entries.size(), 1u);
      EXPECT_EQ(entries[0].type, name);
      const std::string_view type = name;
      EXPECT_EQ(entries[0].dtype.has_value(), type == "F16" || type == "BF16" || type == "F32");
    }
  }
}

struct BadHeader {
  const char* name;
  const char* header;
  size_t data_bytes;
  ErrorCode code;
  const char* message;  // a part of it
};

class SafetensorsBadHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeader, IsRefusedInOneSentence) {
  const Error error = error_for(GetParam().header, GetParam().data_bytes);
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos) << error.what();
  EXPECT_EQ(std::string(error.what()).rfind("file: ", 0), 0u) << error.what();
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
}

constexpr auto kBad = ErrorCode::kCorruptData;
INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsBadHeader,
    ::testing::Values(
        BadHeader{"Empty", "", 0, kBad, "not valid JSON"},
        BadHeader{"NotJson", "{]", 0, kBad, "not valid JSON"},
        BadHeader{"TrailingText", "{} {}", 0, kBad, "not valid JSON"},
        BadHeader{"TopLevelArray", "[]", 0, kBad, "unexpected array"},
        BadHeader{"TopLevelNumber", "5", 0, kBad, "unexpected number"},
        BadHeader{"TensorIsString", R"({"a":"b"})", 0, kBad, "unexpected string at a"},
        BadHeader{"NestedObject", R"({"a":{"dtype":{}}})", 0, kBad, "unexpected object at a"},
        BadHeader{"NestedMetadata", R"({"__metadata__":{"a":{}}})", 0, kBad, "unexpected object"},
        BadHeader{"UnknownField", R"({"a":{"color":1}})", 0, kBad, "unknown field \"color\" at a"},
        BadHeader{"FieldTwice", R"({"a":{"dtype":"F32","dtype":"F32"}})", 0, kBad,
                  "the field \"dtype\" twice at a"},
        BadHeader{"NameTwice",
                  R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                  R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                  0, kBad, "a appears twice"},
        BadHeader{"NoOffsets", R"({"a":{"dtype":"F32","shape":[1]}})", 4, kBad, "two data_offsets"},
        BadHeader{"OneOffset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, kBad,
                  "two data_offsets"},
        BadHeader{"ThreeOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4,
                  kBad, "too many numbers"},
        BadHeader{"NineDimensions",
                  R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
                  kBad, "too many numbers"},
        BadHeader{"NegativeOffset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4,
                  kBad, "negative number at a"},
        BadHeader{"FractionalShape", R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                  4, kBad, "no 64-bit integer"},
        BadHeader{"OverflowingOffset",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}})", 4,
                  kBad, "no 64-bit integer"},
        BadHeader{"ReversedOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                  kBad, "not what its dtype F32 and shape [1] need"},
        BadHeader{"ShapeProductOverflows",
                  R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, kBad, "shape [4294967296, 4294967296] need"},
        BadHeader{"HugeDimension",
                  R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                  kBad, "huge dimension"},
        BadHeader{"ShapeNeedsMoreBytes",
                  R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, kBad,
                  "bytes 0 to 8"},
        BadHeader{"Truncated", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 8,
                  kBad, "truncated: tensor a ends at byte 12 of the data, but there are only 8"},
        BadHeader{"Surplus", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, kBad,
                  "the tensors end at byte 4 of the data, but there are 8"},
        BadHeader{"Overlap",
                  R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  12, kBad, "tensor b begins at byte 4 of the data, inside the tensor before"},
        BadHeader{"Gap",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                  12, kBad, "leaving a gap"},
        BadHeader{"UnsupportedDtype", R"({"w":{"dtype":"F4","shape":[1]}})", 0,
                  ErrorCode::kUnsupported,
                  "tensor w has dtype F4; only BF16, F16 and F32 can be loaded"},
        BadHeader{"ControlCharacters", "{\"a\\n\\u001b[31m\":{\"dtype\":\"C64\"}}", 0,
                  ErrorCode::kUnsupported, "tensor a??[31m has dtype C64"}),
    [](const auto& test) { return test.param.name; });

TEST(Safetensors, HeaderLengthBeyondTheFileIsRefused) {
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{100'000'001}, ~uint64_t{0}, uint64_t{1} << 63}) {
    std::string bytes = safetensors_bytes("{}", "");
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    const Error error = error_of([&] { parse(bytes); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_NE(std::string(error.what()).find(std::to_string(length)), std::string::npos);
  }
  for (size_t n = 0; n < 8; ++n) {
    const std::string bytes(n, '\0');
    EXPECT_EQ(error_of([&] { parse(bytes); }).code(), ErrorCode::kCorruptData);
  }
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string header;
    for (int i = 0; i < 1'000'000; ++i) header += opening;
    EXPECT_EQ(error_for(header, 0).code(), ErrorCode::kCorruptData);
  }
}

// Whatever the bytes are: entries inside the file, or an Error.
TEST(Safetensors, MutatedFilesParseOrThrowError) {
  std::mt19937_64 random(20240607);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string alphabet = "{}[]\",:0123456789-.eE\\ntrufalsBF163_metadata_offset\x00\xff\x80";
  const std::string original = safetensors_bytes(kTwoTensors, std::string(20, 'x'));
  int parsed = 0, refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string bytes = original;
    const size_t edits = 1 + below(4);
    for (size_t i = 0; i < edits && !bytes.empty(); ++i) {
      const size_t at = below(bytes.size());
      switch (below(5)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = alphabet[below(alphabet.size())];
          break;
        case 2:
          bytes.erase(at, 1 + below(8));
          break;
        case 3:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(40)));
          break;
        case 4:
          bytes.resize(at);
          break;
      }
      // Half of the time the length is made to fit again, so that the header itself is reached.
      if (bytes.size() >= 28 && below(2) == 0) {
        const uint64_t length = bytes.size() - 28;
        for (int k = 0; k < 8; ++k) bytes[k] = static_cast<char>(length >> (8 * k));
      }
    }
    try {
      for (const SafetensorsEntry& entry : parse(bytes)) {
        ASSERT_LE(entry.begin, entry.end);
        ASSERT_LE(entry.end, bytes.size());
      }
      ++parsed;
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::kCorruptData ||
                  error.code() == ErrorCode::kUnsupported)
          << error.what();
      ++refused;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace nanovllm
