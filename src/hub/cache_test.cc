#include "hub/cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

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
  EXPECT_FALSE(cache.find(name, Trust::kSure));  // nobody knows whether that is all
  EXPECT_EQ(cache.find(name, Trust::kWeights), cache.snapshot(kCommit));
  cache.keep_listing(kCommit, listing);
  EXPECT_EQ(cache.find(name, Trust::kSure), cache.snapshot(kCommit));
  fs::resize_file(cache.blob(listing[1]), 3);
  EXPECT_FALSE(cache.find(name, Trust::kWeights));
}

// A cache whose "main" has these files, of which nobody said whether they are all.
RepositoryCache cache_of_others(const testing::TempDir& folder,
                                const std::map<std::string, std::string>& files) {
  RepositoryCache cache(folder.path(), "a/b");
  cache.keep_ref("main", kCommit);
  char digit = '0';
  for (const auto& [path, content] : files) {
    cache.link(kCommit, file_of(cache, path, content, ++digit));
  }
  return cache;
}

TEST(HubCache, WhatOthersPulledIsTrustedUnlessAModelCantBeWithoutWhatIsMissing) {
  const std::string index = R"({"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}})";
  const std::map<std::string, std::string> texts = {{"config.json", "{}"},
                                                    {"tokenizer.json", "{}"}};
  std::map<std::string, std::string> files = texts;
  files["model.safetensors"] = "x";
  const auto is_found = [](const std::map<std::string, std::string>& of, Trust trust) {
    const testing::TempDir folder;
    return cache_of_others(folder, of).find({.repository = "a/b"}, trust).has_value();
  };
  EXPECT_TRUE(is_found(files, Trust::kSure));
  for (const auto& [path, content] : files) {
    auto fewer = files;
    fewer.erase(path);
    EXPECT_FALSE(is_found(fewer, Trust::kSure)) << path;
    EXPECT_EQ(is_found(fewer, Trust::kWeights), path != "model.safetensors") << path;
  }
  files = texts;
  files[kIndex] = index;
  files["1.safetensors"] = "x";
  EXPECT_FALSE(is_found(files, Trust::kWeights));
  files["2.safetensors"] = "x";
  EXPECT_TRUE(is_found(files, Trust::kSure));
  files = {{"a-Q4_K_M-00001-of-00002.gguf", "x"}};
  EXPECT_FALSE(is_found(files, Trust::kSure));
  files["a-Q4_K_M-00002-of-00002.gguf"] = "x";
  EXPECT_TRUE(is_found(files, Trust::kSure));
}

TEST(HubCache, OfAnotherTypeThanTheUsualWhatOthersPulledIsNotSureToBeMeant) {
  const testing::TempDir folder;
  const RepositoryCache cache = cache_of_others(folder, {{"a-Q8_0.gguf", "x"}});
  const HubName name{.repository = "a/b"};
  EXPECT_FALSE(cache.find(name, Trust::kSure));
  EXPECT_EQ(cache.find(name, Trust::kWhole), cache.snapshot(kCommit) + "/a-Q8_0.gguf");
  EXPECT_TRUE(cache.find(name, Trust::kWeights));
  for (const char* type : {"Q8_0", "a-Q8_0.gguf"}) {
    EXPECT_TRUE(cache.find({.repository = "a/b", .type = type}, Trust::kSure)) << type;
  }
  Listing listing = cache.files_of_snapshot(kCommit);
  listing[0].hash = std::string(40, 'a');
  cache.keep_listing(kCommit, listing);
  EXPECT_TRUE(cache.find(name, Trust::kSure));  // the hub said that it is the only one
}

TEST(HubCache, OfWhatTheHubListsOnlyWhatWeReadIsMissed) {
  const testing::TempDir folder;
  const RepositoryCache cache = cache_of_others(
      folder, {{"config.json", "{}"}, {"model.safetensors", "x"}, {"tokenizer.json", "{}"}});
  Listing listing = cache.files_of_snapshot(kCommit);
  for (HubFile& file : listing) file.hash = std::string(40, 'a');
  listing.push_back({.path = "vocab.json", .size = 1, .hash = std::string(40, 'b')});
  cache.keep_listing(kCommit, listing);
  EXPECT_TRUE(cache.find({.repository = "a/b"}, Trust::kSure));
  fs::remove(cache.answer(kCommit));
  listing.push_back({.path = "chat_template.jinja", .size = 1, .hash = std::string(40, 'c')});
  cache.keep_listing(kCommit, listing);
  EXPECT_FALSE(cache.find({.repository = "a/b"}, Trust::kWeights));
}

TEST(HubCache, AKeptListWithoutSizesIsNone) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  make_folder(cache.folder + "/nanovllm");
  std::ofstream(cache.answer(kCommit))
      << R"({"sha": ")" << kCommit << R"(", "siblings": [{"rfilename": "config.json"}]})";
  EXPECT_FALSE(cache.listing_of(kCommit));
}

TEST(HubCache, PartsAreTheSharedOneAndThoseOfProcesses) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  const HubFile file = file_of(cache, "x", "content", '1');
  EXPECT_TRUE(cache.parts(file).empty());
  const std::string own = cache.own_part(file), other = cache.own_part(file);
  EXPECT_NE(own, other);
  EXPECT_TRUE(own.ends_with(".incomplete"));
  std::ofstream(cache.blob({.path = "y", .hash = std::string(40, '2')}) + ".incomplete") << "y";
  std::ofstream(cache.part(file)) << "x";
  std::ofstream(own.c_str()) << "x";
  EXPECT_EQ(cache.parts(file), (std::vector<std::string>{cache.part(file), own}));
}

TEST(HubCache, PartsThatNobodyHasWrittenForLongAreIdle) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  const HubFile file = file_of(cache, "x", "content", '1');
  const std::string busy = cache.own_part(file), idle = cache.own_part(file);
  for (const std::string& path : {busy, idle, cache.part(file)}) std::ofstream(path) << "x";
  const auto now = fs::last_write_time(busy);
  fs::last_write_time(busy, now - std::chrono::minutes(19));
  fs::last_write_time(idle, now - std::chrono::minutes(20));
  fs::last_write_time(cache.part(file), now - std::chrono::hours(1));  // another program's
  EXPECT_EQ(cache.idle_parts(file, now), std::vector<std::string>{idle});
  EXPECT_TRUE(cache.idle_parts(file, now - std::chrono::minutes(1)).empty());
}

TEST(HubCache, WhatIsInPlaceTakesNoMoreOfTheDiskAndACopyDoes) {
  const testing::TempDir folder;
  const RepositoryCache cache(folder.path(), "a/b");
  const HubFile file{.path = "x", .size = 1000, .hash = std::string(40, '1')};
  make_folder(cache.folder + "/blobs");
  const auto write = [](const std::string& path, int size) {
    std::ofstream(path) << std::string(size, 'x');
  };
  EXPECT_EQ(cache.bytes_to_come(file), 1000);
  write(cache.part(file), 300);
  EXPECT_EQ(cache.bytes_to_come(file), 700);
  fs::remove(cache.part(file));
  const std::string own = cache.own_part(file);
  write(own, 300);
  EXPECT_EQ(cache.bytes_to_come(file), 1000);  // it stays beside its copy
  fs::last_write_time(own, fs::last_write_time(own) - std::chrono::hours(1));
  EXPECT_EQ(cache.bytes_to_come(file), 700);
  write(own, 800);
  fs::last_write_time(own, fs::last_write_time(own) - std::chrono::hours(1));
  EXPECT_EQ(cache.bytes_to_come(file), 800);  // until it is copied
}

TEST(HubCache, ALockIsHeldByOneAtATime) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/sub/x.lock";
  {
    const auto lock = take_lock(path);
    EXPECT_TRUE(lock);
    EXPECT_FALSE(take_lock(path));
    EXPECT_TRUE(lock_holds(path));
  }
  EXPECT_FALSE(lock_holds(path));
  EXPECT_TRUE(take_lock(path));
}

}  // namespace
}  // namespace nanovllm::hub
