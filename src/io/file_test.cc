#include "io/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::TempDir;

TEST(File, OnlyANameThatDoesNotExistIsAbsent) {
  const TempDir dir;
  const std::string file = dir.write("file", "x");
  const std::string link = dir.path() + "/link";
  EXPECT_FALSE(file_exists(link));
  EXPECT_FALSE(file_exists(dir.path() + "/none/file"));
  EXPECT_TRUE(file_exists(file));
  EXPECT_TRUE(file_exists(dir.path()));
  EXPECT_THROW(file_exists(file + "/below"), Error);
  ASSERT_EQ(::symlink("file", link.c_str()), 0);
  EXPECT_TRUE(file_exists(link));
  std::filesystem::remove(file);
  const Error dangling = error_of([&] { file_exists(link); });
  EXPECT_EQ(dangling.code(), ErrorCode::kNotFound);
  EXPECT_EQ(std::string(dangling.what()), link + ", a link to file: no such file");
  std::filesystem::remove(link);
  ASSERT_EQ(::symlink("link", link.c_str()), 0);
  EXPECT_EQ(std::string(error_of([&] { file_exists(link); }).what()),
            link + ", a link to link: can't be read: Too many levels of symbolic links");
}

TEST(File, LinksThatCantBeReadAreNamedWithTheirTargets) {
  const TempDir dir;
  const std::string link = dir.path() + "/link";
  ASSERT_EQ(::symlink("no\x1bwhere", link.c_str()), 0);
  const std::string expected = link + ", a link to no?where: no such file";
  EXPECT_EQ(std::string(error_of([&] { read_text_file(link); }).what()), expected);
  EXPECT_EQ(std::string(error_of([&] { MappedFile file(link); }).what()), expected);
  EXPECT_EQ(std::string(error_of([&] { check_is_folder(link); }).what())
                .find(link + ", a link to no?where: no such folder"),
            0u);
}

TEST(File, AByteOrderMarkIsNoPartOfAText) {
  const TempDir dir;
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::string text : {"", "a", "\n", "\xEF\xBB", "\xEF\xBB\xBF"}) {
    EXPECT_EQ(read_text_file(dir.write("text", mark + text)), text);
  }
  for (const std::string text : {"a\xEF\xBB\xBF", "\xEF\xBB", "\xFE\xFF"}) {
    EXPECT_EQ(read_text_file(dir.write("text", text)), text);
  }
}

TEST(File, TextsAreAsLongAsAllowed) {
  const TempDir dir;
  EXPECT_EQ(read_text_file(dir.write("text", "12345678"), 8), "12345678");
  EXPECT_EQ(error_of([&] { read_text_file(dir.path() + "/text", 7); }).code(),
            ErrorCode::kCorruptData);
  std::filesystem::resize_file(dir.path() + "/text", kMaxTextBytes);
  EXPECT_EQ(read_text_file(dir.path() + "/text").size(), size_t{64} << 20);
  std::filesystem::resize_file(dir.path() + "/text", kMaxTextBytes + 1);
  EXPECT_EQ(std::string(error_of([&] { read_text_file(dir.path() + "/text"); }).what()),
            dir.path() + "/text: 67108865 bytes long, expected at most 67108864");
}

TEST(File, TextsComeFromRegularFilesOnly) {
  const TempDir dir;
  const std::string pipe = dir.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, dir.path(), std::string("/dev/zero")}) {
    EXPECT_EQ(std::string(error_of([&] { read_text_file(path); }).what()),
              path + ": not a regular file");
  }
}

}  // namespace
}  // namespace nanovllm
