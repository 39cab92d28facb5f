#include "hub/cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/temp_dir_testing.h"
#include "nanovllm/error.h"

namespace nanovllm::hub {
namespace {

namespace fs = std::filesystem;
const std::string kCommit(40, 'c');

HubFile file_of(const RepositoryCache& cache, const std::string& path, const std::string& content,
                char digit) {
  const HubFile file{
      .path = path, .size = static_cast<int64_t>(content.size()), .hash = std::string(40, digit)};
  make_folder(cache.folder + "/blobs");
  std::ofstream(cache.blob(file)) << content;
  return file;
}

TEST(HubCache, PathsAreThoseOfHuggingFace) {
  const RepositoryCache cache("/c", "Own/Mo-del");
  EXPECT_EQ(cache.folder, "/c/models--Own--Mo-del");
  EXPECT_EQ(cache.snapshot("x"), "/c/models--Own--Mo-del/snapshots/x");
  EXPECT_EQ(cache.blob({.path = "p", .hash = "x"}), "/c/models--Own--Mo-del/blobs/x");
  EXPECT_EQ(cache.lock({.path = "p", .hash = "x"}), "/c/.locks/models--Own--Mo-del/x.lock");
}

TEST(HubCache, LinksAreRelativeAndReplaceOlderOnes) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  const HubFile one = file_of(cache, "sub/x.json", "one", '1'),
                other = file_of(cache, "sub/x.json", "other", '2');
  EXPECT_FALSE(cache.holds(kCommit, one));
  EXPECT_TRUE(cache.holds_blob(one));
  cache.link(kCommit, one);
  EXPECT_TRUE(cache.holds(kCommit, one));
  EXPECT_EQ(fs::read_symlink(cache.snapshot(kCommit) + "/sub/x.json"),
            "../../../blobs/" + one.hash);
  cache.link(kCommit, other);
  EXPECT_TRUE(cache.holds(kCommit, other));
  EXPECT_FALSE(cache.holds(kCommit, one));
}

TEST(HubCache, RefsThatAreNoCommitsAreNone) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  EXPECT_EQ(cache.commit_of("main"), std::nullopt);
  EXPECT_EQ(cache.commit_of(kCommit), kCommit);
  cache.keep_ref("refs/pr/1", kCommit);
  EXPECT_EQ(cache.commit_of("refs/pr/1"), kCommit);
  cache.keep_ref("main", "../../../../../../../../../../../etc/x");
  EXPECT_EQ(cache.commit_of("main"), std::nullopt);
}

TEST(HubCache, NothingIsLeftOfWhatCantBeWritten) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  fs::create_directories(cache.folder + "/refs/main/folder");
  EXPECT_THROW(cache.keep_ref("main", kCommit), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache.folder + "/refs"), {}), 1);
}

TEST(HubCache, AModelIsThereWhereAllOfItsFilesAreInTheirSizes) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  const HubName name{.repository = "a/b"};
  cache.keep_ref("main", kCommit);
  const Listing listing = {file_of(cache, "config.json", "{}", '1'),
                           file_of(cache, "model.safetensors", "weights", '2')};
  cache.link(kCommit, listing[0]);
  cache.link(kCommit, listing[1]);
  EXPECT_FALSE(cache.find(name, false));  // nobody knows whether that is all
  EXPECT_EQ(cache.find(name, true), cache.snapshot(kCommit));
  const std::string sha1(40, '1'), other(40, '2');
  cache.keep_answer(kCommit, fmt::format(R"({{"sha": "{}", "siblings": [
      {{"rfilename": "config.json", "size": 2, "blobId": "{}"}},
      {{"rfilename": "model.safetensors", "size": 7, "blobId": "{}"}}]}})",
                                         kCommit, sha1, other));
  EXPECT_EQ(cache.find(name, false), cache.snapshot(kCommit));
  fs::resize_file(cache.blob(listing[1]), 3);
  EXPECT_FALSE(cache.find(name, true));
}

TEST(HubCache, ALockIsHeldByOneAtATime) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/sub/x.lock";
  {
    const auto lock = take_lock(path);
    EXPECT_TRUE(lock);
    EXPECT_FALSE(take_lock(path));
  }
  EXPECT_TRUE(take_lock(path));
}

}  // namespace
}  // namespace nanovllm::hub
