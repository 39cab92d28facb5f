#include "io/weight_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

#include "base/testing.h"
#include "io/file.h"
#include "io/reference_data_testing.h"
#include "io/shards_testing.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::safetensors_bytes;
using testing::TempDir;

// One float32 tensor [2] of the given values.
std::string one_tensor(const std::string& name, float first, float second) {
  std::string data(8, '\0');
  std::memcpy(data.data(), &first, 4);
  std::memcpy(data.data() + 4, &second, 4);
  return safetensors_bytes("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                           data);
}

std::string message_for(const TempDir& dir) {
  return error_of([&] { WeightStore store(dir.path()); }).what();
}

TEST(WeightStore, GivesTensorsByNameAndRemembersWhichWereAskedFor) {
  const TempDir dir;
  dir.write("model.safetensors",
            safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]}})",
                              std::string("\0\0\x80\x3f\x80\x3f\0\x40", 8)));
  const WeightStore store(dir.path());
  EXPECT_TRUE(store.contains("a"));
  EXPECT_FALSE(store.contains("c"));
  EXPECT_EQ(store.total_bytes(), 8);
  EXPECT_EQ(store.unused(), (std::vector<std::string>{"a", "b"}));
  const StoredTensor a = store.get("a", {1});
  float value = 0;
  std::memcpy(&value, a.data, 4);
  EXPECT_EQ(value, 1.0f);
  const StoredTensor b = store.get("b", {1, 2});
  EXPECT_EQ(b.dtype, DType::kBFloat16);
  EXPECT_EQ(to_float(static_cast<const BFloat16*>(b.data)[1]), 2.0f);
  EXPECT_TRUE(store.unused().empty());
}

TEST(WeightStore, OfAMultimodalCheckpointTheTextPartIsThere) {
  for (const char* names : {"language_model.model.norm vision_tower.probe",
                            "model.language_model.norm model.vision_tower.probe"}) {
    const TempDir dir;
    const std::string text(names, std::strchr(names, ' ')), tower = std::strchr(names, ' ') + 1;
    dir.write(
        "model.safetensors",
        safetensors_bytes(R"({"lm_head.weight":{"dtype":"F32","shape":[1],)"
                          R"("data_offsets":[0,4]},"mtp.norm":{"dtype":"F32","shape":[1],)"
                          R"("data_offsets":[4,8]},")" +
                              text + R"(":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},")" +
                              tower + R"(":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}})",
                          std::string(20, '\0')));
    const WeightStore store(dir.path());
    EXPECT_EQ(store.unused(),
              (std::vector<std::string>{"lm_head.weight", "model.norm", "mtp.norm"}));
    EXPECT_EQ(store.ignored_parts(), std::vector<std::string>{"vision_tower"});
    EXPECT_EQ(store.total_bytes(), 12);
  }
  const TempDir dir;
  dir.write("model.safetensors", one_tensor("vision_tower.probe", 1, 2));
  const WeightStore store(dir.path());
  EXPECT_EQ(store.unused(), std::vector<std::string>{"vision_tower.probe"});
  EXPECT_TRUE(store.ignored_parts().empty());
}

TEST(WeightStore, ATensorThatTheTextPartHasTwiceIsRefused) {
  const TempDir dir;
  dir.write("model.safetensors",
            safetensors_bytes(
                R"({"language_model.model.norm":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("model.language_model.norm":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                std::string(8, '\0')));
  const Error error = error_of([&] { const WeightStore store(dir.path()); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_NE(std::string(error.what())
                .find("two tensors are the text part's model.norm, one is "
                      "model.language_model.norm"),
            std::string::npos)
      << error.what();
}

TEST(WeightStore, AFolderWithoutWeightsTellsOfOtherFilesWithSome) {
  const TempDir dir;
  dir.write("config.json", "{}");
  const std::string missing =
      dir.path() + ": neither model.safetensors nor model.safetensors.index.json is there";
  EXPECT_EQ(message_for(dir), missing);
  dir.write("m.gguf", "GGUF");
  EXPECT_EQ(message_for(dir),
            missing + "; beside a config.json, a GGUF file opens by its own name only");
  dir.write("pytorch_model.bin", "");
  EXPECT_EQ(message_for(dir),
            missing + "; convert pytorch_model.bin with transformers' save_pretrained");
}

TEST(WeightStore, TensorsAtOddAddressesAreCopiedToEvenOnes) {
  const TempDir dir;
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  while (header.size() % 2 == 0) header += ' ';
  const float values[2] = {1.5f, -2.25f};
  dir.write("model.safetensors",
            safetensors_bytes(header, {reinterpret_cast<const char*>(values), 8}));
  const WeightStore store(dir.path());
  const StoredTensor a = store.get("a", {2});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 4, 0u);
  EXPECT_EQ(static_cast<const float*>(a.data)[1], -2.25f);
  EXPECT_EQ(store.get("a", {2}).data, a.data);
}

TEST(WeightStore, MissingAndMisshapenTensorsAreNamed) {
  const TempDir dir;
  const std::string path = dir.write("model.safetensors", one_tensor("a", 1, 2));
  const WeightStore store(dir.path());
  const Error missing = error_of([&] { store.get("model.norm.weight", {2}); });
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_EQ(std::string(missing.what()),
            path + ": tensor model.norm.weight is missing from the checkpoint");
  const Error misshapen = error_of([&] { store.get("a", {2, 1}); });
  EXPECT_EQ(misshapen.code(), ErrorCode::kCorruptData);
  EXPECT_EQ(std::string(misshapen.what()),
            path + ": tensor a has shape [2], but config.json asks for [2, 1]");
  EXPECT_EQ(store.unused(), std::vector<std::string>{"a"});
  EXPECT_EQ(store.formats(), (std::vector<WeightFormat>{{"F32", 1, 8}}));
  EXPECT_TRUE(store.formats_in_use().empty());
  store.get("a", {2});
  EXPECT_EQ(store.formats_in_use(), store.formats());
}

TEST(WeightStore, CodesWithoutAConfigThatTellsOfThemAreRefusedWithAHint) {
  const TempDir dir;
  const std::string path = dir.write(
      "model.safetensors",
      testing::safetensors_bytes(R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  EXPECT_EQ(std::string(error_of([&] { const WeightStore store(dir.path()); }).what()),
            path +
                ": tensor a has dtype I8; only BF16, F16 and F32 can be loaded, and others only "
                "with the quantization_config that the config.json of a quantised model has, and "
                "this one has not");
}

TEST(WeightStore, ReadsShardsOfAnIndex) {
  const TempDir dir;
  dir.write("one.safetensors", one_tensor("a", 1, 2));
  dir.write("two.safetensors", one_tensor("b", 3, 4));
  dir.write("model.safetensors.index.json",
            R"({"metadata":{"total_size":16},)"
            R"("weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const WeightStore store(dir.path());
  EXPECT_EQ(static_cast<const float*>(store.get("b", {2}).data)[0], 3.0f);
  EXPECT_EQ(store.total_bytes(), 16);
  EXPECT_EQ(store.unused(), std::vector<std::string>{"a"});
}

TEST(WeightStore, ReleasedTensorsStayReadable) {
  const TempDir dir;
  const int64_t count = 100'000;
  const std::string data(count * 4, '\x40');
  dir.write("model.safetensors",
            safetensors_bytes(R"({"a":{"dtype":"F32","shape":[100000],"data_offsets":[0,400000]}})",
                              data));
  const WeightStore store(dir.path());
  const void* before = store.get("a", {count}).data;
  store.get("a", {count}).source->release();
  EXPECT_EQ(store.get("a", {count}).data, before);
  EXPECT_EQ(std::memcmp(before, data.data(), data.size()), 0);
}

// Whatever the index is: the tensors of the shard, or an Error.
TEST(WeightStore, AFileCutShortLaterIsToldBeforeItIsRead) {
  const TempDir dir;
  const std::string path = dir.write("model.safetensors", one_tensor("a", 1, 2));
  const WeightStore store(dir.path());
  const MatrixSource* source = store.get("a", {2}).source;
  source->check_size();
  std::filesystem::resize_file(path, 4);
  for (const auto& read : {std::function([&] { store.get("a", {2}); }),
                           std::function([&] { source->check_size(); })}) {
    const Error error = error_of(read);
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_NE(std::string(error.what()).find(path + ": cut short"), std::string::npos)
        << error.what();
  }
}

TEST(WeightStore, MutatedIndexesLoadOrThrowError) {
  const TempDir dir;
  dir.write("one.safetensors", one_tensor("a", 1, 2));
  const std::string original =
      R"({"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors"}})";
  const std::string alphabet = "{}[]\",:./\\0123 anult";
  std::mt19937_64 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int loaded = 0, refused = 0;
  for (int round = 0; round < 4'000; ++round) {
    std::string text = original;
    for (size_t edits = 1 + below(2); edits > 0; --edits) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + below(3));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(30)));
          break;
      }
    }
    dir.write("model.safetensors.index.json", text);
    try {
      ASSERT_TRUE(WeightStore(dir.path()).contains("a"));
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 1'000);
}

TEST(WeightStore, BadIndexesAreRefused) {
  const TempDir dir;
  dir.write("one.safetensors", one_tensor("a", 1, 2));
  dir.write("two.safetensors", one_tensor("a", 3, 4));
  const auto message_for_index = [&](const std::string& text) {
    dir.write("model.safetensors.index.json", text);
    return message_for(dir);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(has, message_for_index("{"), "not valid JSON");
  EXPECT_PRED2(has, message_for_index("[]"), "expected a JSON object");
  EXPECT_PRED2(has, message_for_index("{}"), "has no weight_map");
  EXPECT_PRED2(has, message_for_index(R"({"weight_map":[]})"), "has no weight_map");
  EXPECT_PRED2(has, message_for_index(R"({"weight_map":{"a":1}})"), "expected the name of a file");
  for (const char* path :
       {"../secret", "/etc/passwd", "..", ".", "", "x/../../y", "a\\\\b", "a\\u0000"}) {
    EXPECT_PRED2(has, message_for_index(std::string(R"({"weight_map":{"a":")") + path + "\"}}"),
                 "expected the name of a file in the same folder")
        << path;
  }
  EXPECT_PRED2(has, message_for_index(R"({"weight_map":{"a":"three.safetensors"}})"),
               "three.safetensors: this shard is missing");
  EXPECT_PRED2(has, message_for_index(R"({"weight_map":{"b":"one.safetensors"}})"),
               "tensor b is not in one.safetensors");
  EXPECT_PRED2(has,
               message_for_index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"),
               "two.safetensors: tensor a is also in");
  EXPECT_PRED2(has,
               message_for_index(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
               "\"a\" appears twice");
}

TEST(WeightStore, PointersOfGitLfsAreToldFromFiles) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1192135096\n";
  const TempDir dir;
  dir.write("model.safetensors", pointer);
  EXPECT_NE(message_for(dir).find("model.safetensors: a pointer of Git LFS"), std::string::npos);
  dir.write("model.safetensors", pointer.substr(0, 10));
  EXPECT_EQ(message_for(dir).find("Git LFS"), std::string::npos);
  dir.write("config.json", pointer);
  EXPECT_NE(std::string(error_of([&] { read_text_file(dir.path() + "/config.json", 1024); }).what())
                .find("git lfs pull"),
            std::string::npos);
}

TEST(WeightStore, FoldersWithoutACheckpointAreRefused) {
  const TempDir dir;
  EXPECT_EQ(error_of([&] { WeightStore store(dir.path() + "/none"); }).code(),
            ErrorCode::kNotFound);
  EXPECT_NE(message_for(dir).find("neither model.safetensors nor"), std::string::npos);
  dir.write("pytorch_model.bin", "x");
  EXPECT_NE(message_for(dir).find("save_pretrained"), std::string::npos);
  const std::string file = dir.write("model", "x");
  EXPECT_NE(std::string(error_of([&] { WeightStore store(file); }).what()).find("GGUF"),
            std::string::npos);
}

TEST(WeightStore, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const TempDir dir;
  const std::string path = dir.path() + "/model.safetensors";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(message_for(dir).find("not a regular file"), std::string::npos);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_NE(message_for(dir).find("not a regular file"), std::string::npos);
}

// A pruned cache is no reason to take another checkpoint, or to say that there is none.
TEST(WeightStore, LinksThatLeadNowhereAreToldFromFilesThatAreNotThere) {
  const TempDir dir;
  const std::string path = dir.path() + "/model.safetensors";
  dir.write("one.safetensors", one_tensor("a", 1, 2));
  dir.write("model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors"}})");
  EXPECT_NO_THROW(WeightStore(dir.path()));
  std::filesystem::create_symlink("../blobs/0", path);
  EXPECT_EQ(message_for(dir), path + ", a link to ../blobs/0: no such file");
  std::filesystem::rename(path, dir.path() + "/one.safetensors");
  EXPECT_EQ(message_for(dir), dir.path() + "/one.safetensors, a link to ../blobs/0: no such file");
}

// Run in a process of its own, which gives up the rights of root where it has them.
TEST(WeightStoreDeathTest, FilesWithoutReadPermissionAreRefused) {
  const TempDir dir;
  const std::string path = dir.write("model.safetensors", one_tensor("a", 1, 2));
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  const auto open_as_nobody = [&] {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(1);
    const Error error = error_of([&] { WeightStore store(dir.path()); });
    std::fputs(error.what(), stderr);
    _exit(error.code() == ErrorCode::kIo ? 3 : 2);
  };
  EXPECT_EXIT(open_as_nobody(), ::testing::ExitedWithCode(3),
              "model.safetensors: no permission to read it");
}

TEST(WeightStore, EveryTruncationIsRefused) {
  const TempDir dir;
  const std::string whole = one_tensor("a", 1, 2);
  for (size_t n = 0; n < whole.size(); ++n) {
    dir.write("model.safetensors", whole.substr(0, n));
    EXPECT_EQ(error_of([&] { WeightStore store(dir.path()); }).code(), ErrorCode::kCorruptData)
        << n;
  }
  dir.write("model.safetensors", whole);
  EXPECT_TRUE(WeightStore(dir.path()).contains("a"));
}

TEST(WeightStore, ReadsTheDemoModelWholeAndInShards) {
  const std::string model = test::source_path("models/demo");
  const TempDir dir;
  const auto shapes = testing::write_shards(model, 3, dir);
  const WeightStore whole(model), shards(dir.path());
  EXPECT_EQ(whole.unused().size(), shapes.size());
  EXPECT_EQ(whole.unused(), shards.unused());
  EXPECT_EQ(whole.total_bytes(), shards.total_bytes());
  for (const auto& [name, shape] : shapes) {
    const StoredTensor a = whole.get(name, shape), b = shards.get(name, shape);
    ASSERT_EQ(a.dtype, b.dtype) << name;
    ASSERT_EQ(a.bytes, b.bytes) << name;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)), 0) << name;
  }
}

TEST(WeightStore, ReadsTheTrainedCheckpointWholeAndInShards) {
  const auto data = testing::unpacked_archive("checkpoints");
  if (data.empty()) GTEST_SKIP() << testing::archive_of("checkpoints") << " is not there";
  const WeightStore whole(data / "stories260K-hf");
  const WeightStore shards(data / "stories260K-hf-sharded");
  EXPECT_EQ(whole.unused(), shards.unused());
  EXPECT_EQ(whole.total_bytes(), shards.total_bytes());
  const StoredTensor a = whole.get("model.embed_tokens.weight", {512, 64});
  const StoredTensor b = shards.get("model.embed_tokens.weight", {512, 64});
  EXPECT_EQ(std::memcmp(a.data, b.data, 512 * 64 * size_of(a.dtype)), 0);
}

}  // namespace
}  // namespace nanovllm
