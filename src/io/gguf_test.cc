#include "io/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "io/gguf_testing.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::as_text;
using testing::error_of;
using testing::GgufWriter;
using testing::message_in;
using testing::TempDir;
using testing::zeros;
using Strings = std::vector<std::string_view>;

TEST(Gguf, ReadsValuesOfAllTypes) {
  const TempDir dir;
  const std::string path = dir.write("m", GgufWriter()
                                              .add("u8", uint8_t{200})
                                              .add("i8", int8_t{-100})
                                              .add("u16", uint16_t{60'000})
                                              .add("i16", int16_t{-30'000})
                                              .add("u32", uint32_t{4'000'000'000})
                                              .add("i32", int32_t{-2'000'000'000})
                                              .add("u64", uint64_t{1} << 62)
                                              .add("i64", -(int64_t{1} << 62))
                                              .add("f32", 0.5f)
                                              .add("f64", 1e300)
                                              .add("yes", true)
                                              .add("no", false)
                                              .add("text", "caf\u00e9")
                                              .bytes());
  const Gguf file(path);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.keys(), (Strings{"f32", "f64", "i16", "i32", "i64", "i8", "no", "text", "u16",
                                  "u32", "u64", "u8", "yes"}));
  const std::pair<const char*, int64_t> integers[] = {{"u8", 200},
                                                      {"i8", -100},
                                                      {"u16", 60'000},
                                                      {"i16", -30'000},
                                                      {"u32", 4'000'000'000},
                                                      {"i32", -2'000'000'000},
                                                      {"u64", int64_t{1} << 62},
                                                      {"i64", -(int64_t{1} << 62)}};
  for (const auto& [key, value] : integers) {
    EXPECT_EQ(file.integer(key, value, value), value) << key;
    EXPECT_EQ(file.number(key, -1e19, 1e19), static_cast<double>(value)) << key;
  }
  EXPECT_EQ(file.number("f32", 0.5, 0.5), 0.5);
  EXPECT_EQ(file.number("f64", 0, INFINITY), 1e300);
  EXPECT_EQ(file.boolean("yes"), true);
  EXPECT_EQ(file.boolean("no"), false);
  EXPECT_EQ(file.string("text"), "caf\u00e9");
  EXPECT_TRUE(file.has("no"));
  EXPECT_FALSE(file.has("nothing"));
}

TEST(Gguf, ReadsArrays) {
  const TempDir dir;
  const Gguf file(dir.write("m", GgufWriter()
                                     .add("strings", std::vector<std::string>{"a", "", "bcd"})
                                     .add("bytes", std::vector<uint8_t>{1, 255})
                                     .add("shorts", std::vector<int16_t>{-1})
                                     .add("longs", std::vector<uint64_t>{1, 2})
                                     .add("floats", std::vector<float>{0.5f, -1e4f})
                                     .add("doubles", std::vector<double>{0.25})
                                     .add("none", std::vector<float>{})
                                     .add("behind", uint32_t{7})
                                     .bytes()));
  EXPECT_EQ(file.strings("strings"), (Strings{"a", "", "bcd"}));
  EXPECT_EQ(file.integers("bytes"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(file.integers("shorts"), (std::vector<int64_t>{-1}));
  EXPECT_EQ(file.integers("longs"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(file.floats("floats"), (std::vector<float>{0.5f, -1e4f}));
  EXPECT_EQ(file.floats("doubles"), (std::vector<float>{0.25f}));
  EXPECT_EQ(file.floats("longs"), (std::vector<float>{1, 2}));
  EXPECT_EQ(file.floats("none"), std::vector<float>{});
  EXPECT_EQ(file.integer("behind", 0, 10), 7);
}

TEST(Gguf, AbsentKeysReadAsNothing) {
  const TempDir dir;
  const Gguf file(dir.write("m", GgufWriter().bytes()));
  EXPECT_TRUE(file.keys().empty());
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.integer("k", 0, 1), std::nullopt);
  EXPECT_EQ(file.number("k", 0, 1), std::nullopt);
  EXPECT_EQ(file.boolean("k"), std::nullopt);
  EXPECT_EQ(file.string("k"), std::nullopt);
  EXPECT_EQ(file.strings("k"), std::nullopt);
  EXPECT_EQ(file.integers("k"), std::nullopt);
  EXPECT_EQ(file.floats("k"), std::nullopt);
}

TEST(Gguf, UnfitValuesAreRefusedByKeyAndValue) {
  const TempDir dir;
  const Gguf file(dir.write("m", GgufWriter()
                                     .add("five", uint32_t{5})
                                     .add("huge", ~uint64_t{0})
                                     .add("nan", std::nanf(""))
                                     .add("text", "t\x1b")
                                     .add("yes", true)
                                     .add("strings", std::vector<std::string>{"a", "b"})
                                     .add("numbers", std::vector<int32_t>{1, 2, 3})
                                     .add("halves", std::vector<float>{0.5f})
                                     .add("nans", std::vector<float>{std::nanf("")})
                                     .add("large", std::vector<double>{1e300})
                                     .add("huges", std::vector<uint64_t>{uint64_t{1} << 63})
                                     .add("yeses", std::vector<bool>{true})
                                     .bytes()));
  const auto message = [&](auto&& call) {
    const Error error = error_of(call);
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    return message_in(dir, error);
  };
  EXPECT_EQ(message([&] { file.integer("five", 6, 9); }),
            "m: five is 5, expected an integer from 6 to 9");
  EXPECT_EQ(message([&] { file.integer("five", 1, 4); }),
            "m: five is 5, expected an integer from 1 to 4");
  EXPECT_EQ(message([&] { file.integer("huge", 0, INT64_MAX); }),
            "m: huge is 18446744073709551615, expected an integer");
  EXPECT_EQ(file.number("huge", 0, 1e20), 18446744073709551615.0);
  EXPECT_EQ(message([&] { file.number("nan", -1, 1); }),
            "m: nan is nan, expected a number from -1 to 1");
  EXPECT_EQ(message([&] { file.number("five", 0, 4.5); }),
            "m: five is 5, expected a number from 0 to 4.5");
  EXPECT_EQ(message([&] { file.integer("text", 0, 1); }), "m: text is \"t?\", expected an integer");
  EXPECT_EQ(message([&] { file.integer("yes", 0, 1); }), "m: yes is true, expected an integer");
  EXPECT_EQ(message([&] { file.number("numbers", 0, 9); }),
            "m: numbers is an array of 3 numbers, expected a number");
  EXPECT_EQ(message([&] { file.integer("numbers", 0, 9); }),
            "m: numbers is an array of 3 numbers, expected an integer");
  EXPECT_EQ(message([&] { file.boolean("five"); }), "m: five is 5, expected true or false");
  EXPECT_EQ(message([&] { file.boolean("yeses"); }),
            "m: yeses is an array of 1 booleans, expected true or false");
  EXPECT_EQ(message([&] { file.string("five"); }), "m: five is 5, expected a string");
  EXPECT_EQ(message([&] { file.string("strings"); }),
            "m: strings is an array of 2 strings, expected a string");
  EXPECT_EQ(message([&] { file.strings("text"); }),
            "m: text is \"t?\", expected an array of strings");
  EXPECT_EQ(message([&] { file.strings("numbers"); }),
            "m: numbers is an array of 3 numbers, expected an array of strings");
  EXPECT_EQ(message([&] { file.integers("strings"); }),
            "m: strings is an array of 2 strings, expected an array of integers");
  for (const char* key : {"halves", "huges"}) {
    EXPECT_EQ(message([&] { file.integers(key); }),
              fmt::format("m: {} is an array of 1 numbers, expected an array of integers", key));
  }
  EXPECT_EQ(message([&] { file.integers("yeses"); }),
            "m: yeses is an array of 1 booleans, expected an array of integers");
  EXPECT_EQ(message([&] { file.floats("strings"); }),
            "m: strings is an array of 2 strings, expected an array of finite numbers");
  for (const char* key : {"nans", "large"}) {
    EXPECT_EQ(
        message([&] { file.floats(key); }),
        fmt::format("m: {} is an array of 1 numbers, expected an array of finite numbers", key));
  }
}

TEST(Gguf, FindsTensorsInBothVersions) {
  for (const uint32_t version : {2, 3}) {
    const TempDir dir;
    const std::string q4 = std::string(36, 'q') + std::string(36, 'r');
    const Gguf file(
        dir.write("m", GgufWriter(version)
                           .add("general.architecture", "qwen3")
                           .tensor("norm", GgufWriter::kF32, {2}, "12345678")
                           .tensor("w", GgufWriter::kQ4_0, {2, 64}, q4)
                           .tensor("cube", GgufWriter::kF16, {1, 1, 3, 2}, "abcdefghijkl")
                           .bytes()));
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.tensors()[0].name, "norm");
    EXPECT_EQ(as_text(file.tensors()[0]), "12345678");
    EXPECT_EQ(file.tensors()[1].name, "w");
    EXPECT_EQ(file.tensors()[1].type, GgufWriter::kQ4_0);
    EXPECT_EQ(file.tensors()[1].shape, (std::vector<int64_t>{2, 64}));
    EXPECT_EQ(as_text(file.tensors()[1]), q4);
    EXPECT_EQ(file.tensors()[2].shape, (std::vector<int64_t>{1, 1, 3, 2}));
    EXPECT_EQ(as_text(file.tensors()[2]), "abcdefghijkl");
    EXPECT_EQ(file.tensors()[2].part, 0u);
    ASSERT_EQ(file.parts().size(), 1u);
  }
}

TEST(Gguf, AlignmentSaysWhereDataBegins) {
  for (const uint32_t alignment : {8, 32, 128, 1 << 20}) {
    const TempDir dir;
    const Gguf file(dir.write("m", GgufWriter()
                                       .alignment(alignment)
                                       .tensor("a", GgufWriter::kF32, {1}, "1234")
                                       .tensor("b", GgufWriter::kF32, {1}, "5678")
                                       .bytes()));
    EXPECT_EQ(as_text(file.tensors()[0]), "1234");
    EXPECT_EQ(as_text(file.tensors()[1]), "5678");
    EXPECT_EQ(file.tensors()[1].data - file.tensors()[0].data, alignment);
  }
}

TEST(Gguf, TensorsMayLieInAnyOrderAndApart) {
  const TempDir dir;
  const Gguf file(dir.write("m", GgufWriter()
                                     .tensor_at("b", GgufWriter::kF32, {1}, 64)
                                     .tensor_at("a", GgufWriter::kF32, {1}, 0)
                                     .data("1234" + zeros(60) + "5678")
                                     .bytes()));
  EXPECT_EQ(as_text(file.tensors()[0]), "5678");
  EXPECT_EQ(as_text(file.tensors()[1]), "1234");
}

TEST(Gguf, TensorNamesMayHave256Bytes) {
  const TempDir dir;
  const std::string name(256, 'x');
  const Gguf file(dir.write("m", GgufWriter().tensor(name, GgufWriter::kF32, {1}, "1234").bytes()));
  EXPECT_EQ(file.tensors()[0].name, name);
}

std::string small_file() {
  return GgufWriter()
      .add("general.architecture", "qwen3")
      .add("n", uint32_t{7})
      .add("tokens", std::vector<std::string>{"a", "bc"})
      .add("scores", std::vector<float>{1, 2})
      .tensor("norm", GgufWriter::kF32, {2}, "12345678")
      .tensor("w", GgufWriter::kQ8_0, {2, 32}, zeros(68))
      .bytes();
}

// Reads all that can be read.
void touch(const Gguf& file) {
  for (const std::string_view key : file.keys()) {
    const auto tolerant = [](auto&& call) {
      try {
        call();
      } catch (const Error&) {
      }
    };
    tolerant([&] { file.number(key, -INFINITY, INFINITY); });
    tolerant([&] { file.string(key); });
    tolerant([&] { file.strings(key); });
    tolerant([&] { file.integers(key); });
    tolerant([&] { file.floats(key); });
  }
  for (const GgufTensor& tensor : file.tensors()) {
    const auto bytes = file.parts()[tensor.part].bytes();
    ASSERT_GE(tensor.data, bytes.data());
    ASSERT_LE(tensor.data + tensor.bytes, bytes.data() + bytes.size());
  }
}

TEST(Gguf, EveryTruncatedFileIsRefused) {
  const TempDir dir;
  const std::string whole = small_file();
  touch(Gguf(dir.write("m", whole)));
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string path = dir.write("m", whole.substr(0, n));
    EXPECT_EQ(error_of([&] { Gguf file(path); }).code(), ErrorCode::kCorruptData) << n;
  }
}

TEST(Gguf, FilesWithAnyDamagedByteParseOrThrowError) {
  const TempDir dir;
  const std::string whole = small_file();
  int parsed = 0, refused = 0;
  for (size_t n = 0; n < whole.size(); ++n) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[n] = static_cast<char>(damaged[n] ^ flip);
      const std::string path = dir.write("m", damaged);
      try {
        touch(Gguf(path));
        ++parsed;
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::kCorruptData ||
                    error.code() == ErrorCode::kUnsupported)
            << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 100);
}

TEST(Gguf, ReadsLargeVocabulariesAtOnce) {
  const TempDir dir;
  std::vector<std::string> tokens;
  for (int i = 0; i < 300'000; ++i) tokens.push_back("token" + std::to_string(i));
  const std::string path = dir.write("m", GgufWriter().add("tokens", tokens).bytes());
  const auto begin = std::chrono::steady_clock::now();
  const Gguf file(path);
  const auto read = file.strings("tokens");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(read->size(), tokens.size());
  EXPECT_EQ(read->back(), "token299999");
  // Some milliseconds; much more only if it were quadratic.
  EXPECT_LT(seconds.count(), 2);
}

}  // namespace
}  // namespace nanovllm
