#include "io/file_lock.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "io/testing.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

TEST(FileLock, IsHeldByOneAtATimeAndLeavesWhatTheFileHolds) {
  const TempDir dir;
  const std::string path = dir.write("file", "kept");
  {
    const FileLock lock = lock_file(path);
    EXPECT_TRUE(lock.file);
    EXPECT_EQ(lock.error, 0);
    const FileLock other = lock_file(path);
    EXPECT_FALSE(other.file);
    EXPECT_EQ(other.error, EWOULDBLOCK);
  }
  EXPECT_TRUE(lock_file(path).file);
  EXPECT_EQ(fs::file_size(path), 4u);
}

TEST(FileLock, MakesTheFileOrSaysWhyNot) {
  const TempDir dir;
  EXPECT_TRUE(lock_file(dir.path() + "/new").file);
  EXPECT_EQ(fs::file_size(dir.path() + "/new"), 0u);
  EXPECT_EQ(lock_file(dir.path() + "/nowhere/new").error, ENOENT);
  EXPECT_EQ(lock_file(dir.path()).error, EISDIR);
}

TEST(FileLock, IsOfTheFileThatHasTheNameNow) {
  const TempDir dir;
  const std::string path = dir.write("file", "old");
  const FileLock old = lock_file(path);
  fs::remove(path);
  const FileLock current = lock_file(path);
  EXPECT_TRUE(current.file);
  EXPECT_EQ(lock_file(path).error, EWOULDBLOCK);
}

}  // namespace
}  // namespace nanovllm
