// What damaged and hostile GGUF files are refused for.
#include <gtest/gtest.h>

#include "io/gguf.h"
#include "io/gguf_testing.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::GgufWriter;
using testing::message_in;
using testing::TempDir;
using testing::zeros;

struct BadFile {
  const char* name;
  std::string bytes;
  ErrorCode code;
  const char* message;  // a part of it
};

class GgufBadFile : public ::testing::TestWithParam<BadFile> {};

TEST_P(GgufBadFile, IsRefusedInOneSentence) {
  const TempDir dir;
  const std::string path = dir.write("m", GetParam().bytes);
  const Error error = error_of([&] { Gguf file(path); });
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  const std::string message = message_in(dir, error);
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
  EXPECT_EQ(message.rfind("m: ", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

// One tensor over 64 bytes of data.
std::string lone_tensor(uint32_t type, const std::vector<uint64_t>& dimensions,
                        uint64_t offset = 0) {
  return GgufWriter().tensor_at("t", type, dimensions, offset).data(zeros(64)).bytes();
}

std::string aligned(auto alignment) {
  return GgufWriter().add("general.alignment", alignment).bytes();
}

std::string number(uint64_t n) { return {reinterpret_cast<const char*>(&n), sizeof n}; }

constexpr auto kDamaged = ErrorCode::kCorruptData;
constexpr auto kUnsupported = ErrorCode::kUnsupported;
constexpr uint64_t kHuge = uint64_t{1} << 63;

INSTANTIATE_TEST_SUITE_P(
    Kinds, GgufBadFile,
    ::testing::Values(
        BadFile{"Empty", "", kDamaged, "not a GGUF file"},
        BadFile{"OtherMagic", "GGML" + zeros(60), kDamaged, "not a GGUF file"},
        BadFile{"Version0", GgufWriter(0).bytes(), kUnsupported,
                "GGUF version 0; use a little-endian file of version 2 or 3 of the same model"},
        BadFile{"Version1", GgufWriter(1).bytes(), kUnsupported, "GGUF version 1; use"},
        BadFile{"Version4", GgufWriter(4).bytes(), kUnsupported, "GGUF version 4; use"},
        BadFile{"BigEndian", GgufWriter(0x03000000).bytes(), kUnsupported,
                "is big-endian; use a little-endian file"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Keys, GgufBadFile,
    ::testing::Values(
        BadFile{"CountBeyondTheFile", GgufWriter().counts(0, ~uint64_t{0}).bytes(), kDamaged,
                "the list of keys would end beyond the file"},
        BadFile{"NameBeyondTheFile", GgufWriter().counts(0, 1).bytes() + number(kHuge) + "name",
                kDamaged, "the list of keys would end beyond the file"},
        BadFile{"StringBeyondTheFile", GgufWriter().add_raw("k", 8, number(~uint64_t{0})).bytes(),
                kDamaged,
                "key k would end beyond the file, which is damaged or truncated at 45 bytes; "
                "download the file again"},
        BadFile{"ArrayBeyondTheFile",
                GgufWriter().add_raw("k", 9, std::string("\4\0\0\0", 4) + number(kHuge)).bytes(),
                kDamaged, "key k would end beyond the file"},
        // 2^62 elements of 4 bytes are 0 bytes modulo 2^64.
        BadFile{
            "ArrayThatWraps",
            GgufWriter().add_raw("k", 9, std::string("\4\0\0\0", 4) + number(kHuge / 2)).bytes(),
            kDamaged, "key k would end beyond the file"},
        BadFile{"StringsBeyondTheFile",
                GgufWriter()
                    .add_raw("k", 9, std::string("\x8\0\0\0", 4) + number(kHuge) + zeros(64))
                    .bytes(),
                kDamaged, "key k would end beyond the file"},
        BadFile{"NestedArray",
                GgufWriter().add_raw("k", 9, std::string("\x9\0\0\0", 4) + zeros(64)).bytes(),
                kDamaged, "key k is an array of arrays"},
        BadFile{"UnknownType", GgufWriter().add_raw("k", 13, zeros(64)).bytes(), kDamaged,
                "key k has the unknown type 13"},
        BadFile{"ArrayOfUnknownType",
                GgufWriter().add_raw("k", 9, std::string("\xd\0\0\0", 4) + zeros(64)).bytes(),
                kDamaged, "key k has the unknown type 13"},
        BadFile{"Twice", GgufWriter().add("a", 1).add("b", 2).add("a", 1).bytes(), kDamaged,
                "key a appears twice"},
        BadFile{"ControlCharacters", GgufWriter().add_raw("a\n\x1b[31m\xff", 99, "").bytes(),
                kDamaged, "key a??[31m? has the unknown type 99"},
        BadFile{"Alignment0", aligned(uint32_t{0}), kDamaged,
                "general.alignment is 0, expected an integer from 8 to 1048576"},
        BadFile{"Alignment3", aligned(uint32_t{3}), kDamaged, "general.alignment is 3"},
        BadFile{"Alignment4", aligned(uint32_t{4}), kDamaged, "general.alignment is 4"},
        BadFile{"Alignment24", aligned(uint32_t{24}), kDamaged,
                "general.alignment is 24, expected a power of two"},
        BadFile{"Alignment2Mi", aligned(uint32_t{1} << 21), kDamaged,
                "general.alignment is 2097152"},
        BadFile{"AlignmentHuge", aligned(uint32_t{1} << 31), kDamaged,
                "general.alignment is 2147483648"},
        BadFile{"AlignmentText", aligned("32"), kDamaged, "general.alignment is \"32\""}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, GgufBadFile,
    ::testing::Values(
        BadFile{"CountBeyondTheFile", GgufWriter().counts(~uint64_t{0}, 0).bytes(), kDamaged,
                "the list of tensors would end beyond the file"},
        BadFile{"Twice",
                GgufWriter()
                    .tensor("a", GgufWriter::kF32, {1}, "1234")
                    .tensor("b", GgufWriter::kF32, {1}, "1234")
                    .tensor("a", GgufWriter::kF32, {1}, "1234")
                    .bytes(),
                kDamaged, "tensor a appears twice"},
        BadFile{"NoName", GgufWriter().tensor("", GgufWriter::kF32, {1}, "1234").bytes(), kDamaged,
                "tensor has a name of 0 bytes, expected 1 to 256"},
        BadFile{"LongName",
                GgufWriter().tensor(std::string(257, 'x'), GgufWriter::kF32, {1}, "1234").bytes(),
                kDamaged, "has a name of 257 bytes, expected 1 to 256"},
        BadFile{"NoDimensions", lone_tensor(GgufWriter::kF32, {}), kDamaged,
                "tensor t has 0 dimensions, expected 1 to 4"},
        BadFile{"FiveDimensions", lone_tensor(GgufWriter::kF32, {1, 1, 1, 1, 1}), kDamaged,
                "tensor t has 5 dimensions, expected 1 to 4"},
        BadFile{"DimensionOf0", lone_tensor(GgufWriter::kF32, {4, 0}), kDamaged,
                "tensor t has a dimension of 0"},
        BadFile{"NegativeDimension", lone_tensor(GgufWriter::kF32, {4, kHuge}), kDamaged,
                "tensor t has a dimension of 9223372036854775808"},
        BadFile{"BytesThatWrap", lone_tensor(GgufWriter::kF32, {kHuge / 2}), kDamaged,
                "tensor t is larger than any file"},
        BadFile{"ProductThatWraps",
                lone_tensor(GgufWriter::kQ4_0, {uint64_t{1} << 32, uint64_t{1} << 32, 32}),
                kDamaged, "tensor t is larger than any file"},
        BadFile{"ProductThatWrapsToLittle",
                lone_tensor(GgufWriter::kF32, {16, uint64_t{1} << 30, uint64_t{1} << 30}), kDamaged,
                "tensor t is larger than any file"},
        BadFile{"UnalignedOffset", lone_tensor(GgufWriter::kF32, {1}, 16), kDamaged,
                "tensor t begins at byte 16 of the data, which is no multiple of 32"},
        BadFile{"OffsetAtTheEnd", lone_tensor(GgufWriter::kF32, {1}, 64), kDamaged,
                "tensor t needs 4 bytes from byte 64 of the data, of which there are 64"},
        BadFile{"OffsetBeyondTheFile", lone_tensor(GgufWriter::kF32, {1}, 96), kDamaged,
                "tensor t needs 4 bytes from byte 96"},
        BadFile{"OffsetThatWraps", lone_tensor(GgufWriter::kF32, {8}, ~uint64_t{31}), kDamaged,
                "tensor t needs 32 bytes from byte 18446744073709551584"},
        BadFile{"EndBeyondTheFile", lone_tensor(GgufWriter::kF32, {17}), kDamaged,
                "tensor t needs 68 bytes from byte 0 of the data, of which there are 64: the file "
                "is damaged or truncated; download the file again"},
        BadFile{"NoData", GgufWriter().tensor_at("t", GgufWriter::kF32, {1}, 0).bytes(), kDamaged,
                "of which there are 0"},
        BadFile{"Overlap",
                GgufWriter()
                    .tensor_at("a", GgufWriter::kF32, {8}, 32)
                    .tensor_at("b", GgufWriter::kF32, {9}, 0)
                    .data(zeros(64))
                    .bytes(),
                kDamaged, "tensor a overlaps tensor b"},
        BadFile{"SamePlace",
                GgufWriter()
                    .tensor_at("a", GgufWriter::kF32, {1}, 0)
                    .tensor_at("b", GgufWriter::kF32, {1}, 0)
                    .data(zeros(64))
                    .bytes(),
                kDamaged, "overlaps tensor"},
        BadFile{"RowsOfHalfABlock", lone_tensor(GgufWriter::kQ4_0, {48, 2}), kDamaged,
                "tensor t has rows of 48 elements, not a multiple of Q4_0's 32"},
        BadFile{"RowsBelowASuperblock", lone_tensor(GgufWriter::kQ4_K, {128, 2}), kDamaged,
                "tensor t has rows of 128 elements, not a multiple of Q4_K's 256"},
        BadFile{"TypeWithoutDecoder", lone_tensor(16, {256}), kUnsupported,
                "tensor t has type IQ2_XXS, which can't be read; use a Q4_K_M file of the same "
                "model"},
        BadFile{"RemovedType", lone_tensor(31, {256}), kUnsupported,
                "tensor t has type Q4_0_4_4, which can't be read; use a Q4_K_M file"},
        BadFile{"TernaryType", lone_tensor(34, {256}), kUnsupported,
                "tensor t has type TQ1_0, which"},
        BadFile{"UnknownType", lone_tensor(4'000'000'000, {256}), kUnsupported,
                "tensor t has type 4000000000, which can't be read"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace nanovllm
