// Models in several files, and which file a path or a folder means.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/gguf.h"
#include "io/gguf_testing.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::as_text;
using testing::error_of;
using testing::GgufWriter;
using testing::message_in;
using testing::TempDir;

// A model in three parts, as they are published: the first without tensors, the others without
// metadata.
class GgufSplit : public ::testing::Test {
 protected:
  static GgufWriter part(uint16_t no, uint16_t count = 3, int32_t num_tensors = 2) {
    return GgufWriter()
        .add("split.no", no)
        .add("split.count", count)
        .add("split.tensors.count", num_tensors);
  }
  static GgufWriter first() { return part(0).add("general.architecture", "llama"); }
  static GgufWriter second() { return part(1).tensor("a", GgufWriter::kF32, {1}, "1234"); }
  static GgufWriter third() { return part(2).tensor("b", GgufWriter::kF32, {1}, "5678"); }

  std::string write(int number, const GgufWriter& writer) const {
    return dir_.write(fmt::format("m-0000{}-of-00003.gguf", number), writer.bytes());
  }
  // What is said of three parts.
  std::string message(const GgufWriter& a, const GgufWriter& b, const GgufWriter& c) const {
    const std::string path = write(1, a);
    write(2, b);
    write(3, c);
    const Error error = error_of([&] { Gguf file(path); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    return message_in(dir_, error);
  }

  const TempDir dir_;
};

TEST_F(GgufSplit, TakesThePartsBesideTheFirst) {
  const std::string path = write(1, first());
  write(2, second());
  write(3, third());
  const Gguf file(path);
  ASSERT_EQ(file.parts().size(), 3u);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.string("general.architecture"), "llama");
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[0].part, 1u);
  EXPECT_EQ(as_text(file.tensors()[0]), "1234");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.tensors()[1].part, 2u);
  EXPECT_EQ(as_text(file.tensors()[1]), "5678");
}

TEST_F(GgufSplit, PartsMayBeLinksIntoACache) {
  const TempDir links;
  const std::string first_link = links.path() + "/m-00001-of-00003.gguf";
  std::filesystem::create_symlink(dir_.write("blob1", first().bytes()), first_link);
  std::filesystem::create_symlink(dir_.write("blob2", second().bytes()),
                                  links.path() + "/m-00002-of-00003.gguf");
  std::filesystem::create_symlink(dir_.write("blob3", third().bytes()),
                                  links.path() + "/m-00003-of-00003.gguf");
  EXPECT_EQ(Gguf(first_link).tensors().size(), 2u);
}

TEST_F(GgufSplit, OfALaterPartTheFirstIsNamed) {
  const std::string path = write(2, second());
  const Error error = error_of([&] { Gguf file(path); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_EQ(message_in(dir_, error),
            "m-00002-of-00003.gguf: part 2 of a model in 3 parts; open m-00001-of-00003.gguf, the "
            "first");
}

TEST_F(GgufSplit, MissingPartsAreNamed) {
  const std::string path = write(1, first());
  write(2, second());
  const Error error = error_of([&] { Gguf file(path); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(message_in(dir_, error),
            "m-00003-of-00003.gguf: no such file; the model is in 3 parts, so download all into "
            "one folder");
}

TEST_F(GgufSplit, PartsUnderOtherNamesAreRefused) {
  for (const char* name : {"m.gguf", "m-00001-of-00002.gguf", "m-1-of-3.gguf"}) {
    const std::string path = dir_.write(name, first().bytes());
    const Error error = error_of([&] { Gguf file(path); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_EQ(message_in(dir_, error),
              fmt::format("{}: part 1 of a model in 3 parts, but its name does not end in "
                          "-00001-of-00003.gguf; give all parts the names under which they were "
                          "published",
                          name));
  }
}

TEST_F(GgufSplit, ForeignPartsAreRefused) {
  const std::string foreign =
      "m-00002-of-00003.gguf: not part 2 of the model that begins in m-00001-of-00003.gguf; "
      "download both again";
  const GgufWriter others[] = {
      third(),                                                   // another number
      part(1, 4).tensor("a", GgufWriter::kF32, {1}, "1234"),     // of another count
      part(1, 3, 9).tensor("a", GgufWriter::kF32, {1}, "1234"),  // of more tensors
      second().add("general.architecture", "qwen3"),             // of another kind
      GgufWriter().tensor("a", GgufWriter::kF32, {1}, "1234"),   // no part at all
  };
  for (const GgufWriter& other : others) EXPECT_EQ(message(first(), other, third()), foreign);
  write(2, second().add("general.architecture", "llama"));
  EXPECT_EQ(Gguf(dir_.path() + "/m-00001-of-00003.gguf").tensors().size(), 2u);
}

TEST_F(GgufSplit, TensorsInTwoPartsAreRefused) {
  EXPECT_EQ(message(first(), second(), part(2).tensor("a", GgufWriter::kF32, {1}, "5678")),
            "m-00003-of-00003.gguf: tensor a is also in m-00002-of-00003.gguf");
}

TEST_F(GgufSplit, TheNumberOfTensorsMustBeRight) {
  const GgufWriter two = third().tensor("c", GgufWriter::kF32, {1}, "1234");
  EXPECT_EQ(message(first(), second(), two),
            "m-00001-of-00003.gguf: the 3 parts hold 3 tensors, expected 2; download them again");
  EXPECT_EQ(message(first(), second(), part(2)),
            "m-00001-of-00003.gguf: the 3 parts hold 1 tensors, expected 2; download them again");
}

TEST_F(GgufSplit, DamagedPartsAreNamed) {
  EXPECT_EQ(message(first(), GgufWriter().counts(0, 9), third()),
            "m-00002-of-00003.gguf: the list of keys would end beyond the file, which is damaged "
            "or truncated at 24 bytes; download the file again");
}

TEST_F(GgufSplit, SenselessNumbersAreRefused) {
  EXPECT_EQ(message(part(3), second(), third()),
            "m-00001-of-00003.gguf: split.no is 3, expected an integer from 0 to 2");
  EXPECT_EQ(message(GgufWriter().add("split.count", uint32_t{100'000}), second(), third()),
            "m-00001-of-00003.gguf: split.count is 100000, expected an integer from 0 to 99999");
}

TEST_F(GgufSplit, AFilePutTogetherAgainIsOneFile) {
  for (const uint16_t count : {0, 1}) {
    const std::string path = dir_.write(
        "merged.gguf", part(0, count).tensor("a", GgufWriter::kF32, {1}, "1234").bytes());
    EXPECT_EQ(Gguf(path).parts().size(), 1u);
  }
}

TEST(FindGguf, TakesFilesByTheirMagicWhateverTheirName) {
  const TempDir dir;
  const std::string path = dir.write("sha256-0123", GgufWriter().bytes());
  EXPECT_EQ(find_gguf(path), path);
  const std::string other = dir.write("m.gguf", "{}");
  const Error error = error_of([&] { find_gguf(other); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_EQ(message_in(dir, error),
            "m.gguf: not a GGUF file, for it does not begin with the letters GGUF; expected one, "
            "or a model folder");
}

TEST(FindGguf, WhatIsMissingIsAFileByItsName) {
  const TempDir dir;
  EXPECT_EQ(find_gguf(dir.path() + "/nothing"), std::nullopt);
  const Error error = error_of([&] { find_gguf(dir.path() + "/m.gguf"); });
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(message_in(dir, error), "m.gguf: no such file");
}

TEST(FindGguf, TakesTheOnlyFileOfAFolderWithoutConfig) {
  const TempDir dir;
  EXPECT_EQ(find_gguf(dir.path()), std::nullopt);
  dir.write("README.md", "");
  dir.write("._m.gguf", "");
  const std::string path = dir.write("m.gguf", GgufWriter().bytes());
  EXPECT_EQ(find_gguf(dir.path()), path);
  EXPECT_EQ(find_gguf(dir.path() + "/"), path);
  dir.write("config.json", "{}");
  EXPECT_EQ(find_gguf(dir.path()), std::nullopt);
}

TEST(FindGguf, TakesTheFirstPartOfAFolder) {
  const TempDir dir;
  dir.write("m-00002-of-00003.gguf", "");
  dir.write("m-00003-of-00003.gguf", "");
  // Be it missing: opening it says so.
  EXPECT_EQ(find_gguf(dir.path()), dir.path() + "/m-00001-of-00003.gguf");
  dir.write("m-00001-of-00003.gguf", "");
  EXPECT_EQ(find_gguf(dir.path()), dir.path() + "/m-00001-of-00003.gguf");
}

TEST(FindGguf, OfSeveralFilesAllAreListed) {
  const TempDir dir;
  dir.write("m-Q8_0.gguf", "");
  dir.write("m-Q4_K_M.gguf", "");
  dir.write("m-F16-00001-of-00002.gguf", "");
  dir.write("m-F16-00002-of-00002.gguf", "");
  const Error error = error_of([&] { find_gguf(dir.path()); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_EQ(std::string(error.what()),
            dir.path() +
                ": holds 3 GGUF files; name one of them: m-F16-00001-of-00002.gguf, "
                "m-Q4_K_M.gguf, m-Q8_0.gguf");
}

}  // namespace
}  // namespace nanovllm
