#include "io/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "io/testing.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

TEST(OutputFile, AFileIsTheModelsByEveryPathAndLink) {
  const TempDir dir, elsewhere;
  const std::string blob = elsewhere.write("blob", "x");
  const std::string own = dir.write("own", "x");
  fs::create_directories(dir.path() + "/a/b/c");
  const std::string deep = dir.write("a/b/deep", "x"), deeper = dir.write("a/b/c/deeper", "x");
  fs::create_symlink(blob, dir.path() + "/link");
  fs::create_symlink("loop", dir.path() + "/loop");
  fs::create_symlink("nowhere", dir.path() + "/dangling");
  fs::create_symlink("..", dir.path() + "/a/up");
  fs::create_symlink(own, elsewhere.path() + "/to_own");
  fs::create_hard_link(own, elsewhere.path() + "/hard");
  fs::create_symlink(dir.path(), elsewhere.path() + "/model");
  for (const std::string& path : {own, deep, blob, dir.path() + "/link", dir.path() + "/a/../own",
                                  elsewhere.path() + "/to_own", elsewhere.path() + "/hard",
                                  elsewhere.path() + "/model/own"}) {
    EXPECT_TRUE(is_file_of_model(path, dir.path())) << path;
    EXPECT_TRUE(is_file_of_model(path, elsewhere.path() + "/model")) << path;
  }
  ASSERT_EQ(::mkfifo((dir.path() + "/pipe").c_str(), 0600), 0);
  for (const std::string& path :
       {std::string(), dir.path() + "/new", dir.path() + "/dangling", dir.path() + "/a",
        dir.path() + "/pipe", elsewhere.write("other", "x"), std::string("/dev/null")}) {
    EXPECT_FALSE(is_file_of_model(path, dir.path())) << path;
  }
  // What lies so deep is not read; links that lead up end the search here too.
  EXPECT_FALSE(is_file_of_model(deeper, dir.path()));
}

TEST(OutputFile, AModelMayBeAFileOfSeveralParts) {
  const TempDir dir;
  const std::string model = dir.write("model-1-of-2.gguf", "x");
  const std::string part = dir.write("model-2-of-2.gguf", "x");
  const std::string other = dir.write("results.jsonl", "x");
  fs::create_hard_link(model, dir.path() + "/hard");
  EXPECT_TRUE(is_file_of_model(model, model));
  EXPECT_TRUE(is_file_of_model(part, model));
  EXPECT_TRUE(is_file_of_model(dir.path() + "/hard", model));
  EXPECT_FALSE(is_file_of_model(other, model));
  EXPECT_FALSE(is_file_of_model(dir.path() + "/model-3-of-2.gguf", model));
  EXPECT_FALSE(is_file_of_model(other, dir.path() + "/none"));
}

TEST(OutputFile, FilesAreTheSameByEveryPathAndLink) {
  const TempDir dir;
  const std::string file = dir.write("file", "x");
  fs::create_hard_link(file, dir.path() + "/hard");
  fs::create_symlink("file", dir.path() + "/link");
  for (const char* name : {"/./file", "/hard", "/link"}) {
    EXPECT_TRUE(is_same_file(file, dir.path() + name)) << name;
  }
  EXPECT_TRUE(is_same_file(dir.path() + "/new", dir.path() + "/./new"));
  EXPECT_FALSE(is_same_file(file, dir.path() + "/new"));
  EXPECT_FALSE(is_same_file(file, dir.write("other", "x")));
  EXPECT_FALSE(is_same_file("/dev/null", "/dev/null"));
  EXPECT_FALSE(is_same_file("", ""));
}

TEST(OutputFile, ADraftTakesThePlaceOrGoes) {
  const TempDir dir;
  const std::string place = dir.write("file", "old");
  const auto num_files = [&] { return std::distance(fs::directory_iterator(dir.path()), {}); };
  {
    const Draft draft(place), other(place);
    EXPECT_NE(draft.path(), other.path());
    EXPECT_EQ(fs::path(draft.path()).parent_path(), dir.path());
    std::ofstream(draft.path()) << "whole";
    std::ofstream(other.path()) << "half";
    EXPECT_EQ(fs::file_size(place), 3u);
    EXPECT_EQ(draft.take_place(), 0);
  }
  EXPECT_EQ(fs::file_size(place), 5u);
  EXPECT_EQ(num_files(), 1);
  fs::create_directories(dir.path() + "/folder/full");
  {
    const Draft draft(dir.path() + "/folder");
    EXPECT_EQ(draft.take_place(), ENOENT);  // nothing was written
    std::ofstream(draft.path()) << "x";
    EXPECT_EQ(draft.take_place(), EISDIR);
  }
  EXPECT_EQ(num_files(), 2);
}

}  // namespace
}  // namespace nanovllm
