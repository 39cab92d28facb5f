#include "io/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFolders = 2;  // folders in folders; nothing that is read lies in more than one

// What can't be looked at can't be read either, so that errors mean no.
bool holds(const fs::path& folder, const fs::path& file, int depth) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::equivalent(entry.path(), file, ignored)) return true;
    if (depth > 0 && entry.is_directory(ignored) && holds(entry.path(), file, depth - 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;  // a file that is not there is told where it is opened
  if (a.empty() || b.empty()) return false;
  if (fs::exists(a, ignored)) {
    return fs::is_regular_file(a, ignored) && fs::equivalent(a, b, ignored);
  }
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

bool is_file_of_model(const std::string& path, const std::string& model) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  if (fs::is_directory(model, ignored)) return holds(model, path, kMaxFolders);
  if (fs::equivalent(model, path, ignored)) return true;
  const fs::path folder = fs::path(model).parent_path();
  const fs::path ending = fs::path(model).extension();
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, ignored)) {
    if (entry.path().extension() == ending && fs::equivalent(entry.path(), path, ignored)) {
      return true;
    }
  }
  return false;
}

Draft::Draft(const std::string& place)
    : place_(place), path_(fmt::format("{}.{:08x}.tmp", place, std::random_device()())) {}

Draft::~Draft() { static_cast<void>(std::remove(path_.c_str())); }

int Draft::take_place() const {
  return std::rename(path_.c_str(), place_.c_str()) == 0 ? 0 : errno;
}

}  // namespace nanovllm
