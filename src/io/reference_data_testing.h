// Reference data of other projects for tests. What their licences let us show stands under
// tests/data, for everybody; the archives of ../shared/data have all of it. The same tests run on
// either.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "io/temp_dir_testing.h"

namespace nanovllm::testing {

enum class Extent { kCommitted, kWhole };

inline std::string archive_of(const std::string& name) {
  return test::source_path("../shared/data/") + name + ".tar.xz";
}

// The content of an archive without its top folder, unpacked once a process; empty: it is not
// there, and the test should skip.
inline std::filesystem::path unpacked_archive(const std::string& name) {
  static std::map<std::string, TempDir> folders;
  const std::string archive = archive_of(name);
  if (!std::filesystem::exists(archive)) return {};
  const auto [folder, is_new] = folders.try_emplace(name);
  const std::string& path = folder->second.path();
  if (is_new) {
    const std::string command = "tar xf '" + archive + "' --strip-components=1 -C '" + path + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  return path;
}

// The folder "chat-templates", say, is chat_templates there.
inline std::filesystem::path committed_folder(std::string name) {
  std::ranges::replace(name, '-', '_');
  return std::filesystem::path(test::source_path("tests/data")) / name;
}

// A test on the folders of some names, either those committed or the archives.
class ReferenceDataTest : public ::testing::TestWithParam<Extent> {
 protected:
  explicit ReferenceDataTest(std::vector<std::string> names) : names_(std::move(names)) {}

  void SetUp() override {
    for (const std::string& name : names_) {
      folders_[name] = is_whole() ? unpacked_archive(name) : committed_folder(name);
      if (folders_[name].empty()) GTEST_SKIP() << archive_of(name) << " is not there";
    }
  }

  static bool is_whole() { return GetParam() == Extent::kWhole; }
  const std::filesystem::path& folder(const std::string& name) const { return folders_.at(name); }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::filesystem::path> folders_;
};

inline const auto kExtents = ::testing::Values(Extent::kCommitted, Extent::kWhole);

inline std::string name_of_extent(const ::testing::TestParamInfo<Extent>& test) {
  return test.param == Extent::kWhole ? "Whole" : "Committed";
}

}  // namespace nanovllm::testing
