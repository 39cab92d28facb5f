#include "hub/inventory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.h"
#include "hub/find.h"

namespace nanovllm::hub {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "models--";

// Names in a folder; none where there is no such folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Bytes of the blobs that fit.
template <typename Fits>
int64_t size_of_blobs(const RepositoryCache& cache, const Fits& fits) {
  int64_t size = 0;
  for (const std::string& name : names_in(cache.folder + "/blobs")) {
    std::error_code error;
    const auto bytes = fs::file_size(cache.folder + "/blobs/" + name, error);
    if (!error && fits(name)) size += static_cast<int64_t>(bytes);
  }
  return size;
}

// Those of one commit: the folder's, and one for each type of GGUF.
void add_snapshot(std::vector<CachedModel>& models, const RepositoryCache& cache, HubName name) {
  std::map<std::string, int64_t> sizes;  // by type; "" = of all that is not GGUF
  bool has_weights = false;
  for (const HubFile& file : cache.files_of_snapshot(*cache.commit_of(name.revision))) {
    sizes[file.path.ends_with(".gguf") ? type_of_gguf(file.path) : ""] += file.size;
    has_weights = has_weights || file.path.ends_with(".safetensors");
  }
  for (const auto& [type, size] : sizes) {
    if (type.empty() && !has_weights && sizes.size() > 1) continue;  // texts beside GGUF files
    name.type = type;
    const auto path = find_in_cache(cache, name, true);
    models.push_back({.name = name.repository +
                              (name.revision == "main" ? "" : "@" + name.revision) +
                              (type.empty() ? "" : ":" + type),
                      .num_bytes = size,
                      .is_complete = path.has_value(),
                      .path = path.value_or("")});
  }
}

// So that nobody pulls what is being taken away.
std::vector<FileLock> lock_all(const RepositoryCache& cache, const std::string& name) {
  std::vector<FileLock> locks;
  for (const std::string& file : names_in(cache.locks)) {
    auto lock = FileLock::try_take(cache.locks + "/" + file);
    if (!lock) {
      throw_error(ErrorCode::kUnavailable, "{}: is being pulled by another program; end that first",
                  name);
    }
    locks.push_back(std::move(*lock));
  }
  return locks;
}

void remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_write_error(path, error.value());
}

// What no snapshot has a link to any more.
void remove_unused_blobs(const RepositoryCache& cache) {
  std::set<std::string> used;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(cache.folder + "/snapshots", error)) {
    used.insert(fs::read_symlink(entry.path(), error).filename().string());
  }
  for (const std::string& blob : names_in(cache.folder + "/blobs")) {
    if (!used.contains(blob)) remove(cache.folder + "/blobs/" + blob);
  }
}

}  // namespace

std::vector<CachedModel> list_models(const std::string& cache) {
  std::vector<CachedModel> models;
  for (const std::string& folder : names_in(cache)) {
    const size_t dashes = folder.find("--", kPrefix.size());
    if (!folder.starts_with(kPrefix) || dashes == folder.npos) continue;
    HubName name{.repository =
                     std::string(folder).replace(dashes, 2, 1, '/').substr(kPrefix.size())};
    const RepositoryCache own(cache, name.repository);
    const auto main = own.commit_of("main");
    const size_t begin = models.size();
    for (const std::string& commit : names_in(own.folder + "/snapshots")) {
      name.revision = commit == main ? "main" : commit;
      if (is_hash(commit, kSha1Digits)) add_snapshot(models, own, name);
    }
    const int64_t coming =
        size_of_blobs(own, [](auto& blob) { return blob.ends_with(".incomplete"); });
    if (coming > 0 && models.size() == begin)
      models.push_back({.name = name.repository, .is_complete = false});
    for (size_t i = begin; i < models.size(); ++i) {
      if (!models[i].is_complete) models[i].num_bytes += coming;
    }
  }
  return models;
}

int64_t remove_model(const std::string& cache, const std::string& text) {
  const HubName name = expect_name(text);
  const RepositoryCache own(cache, name.repository);
  const bool is_all = text == name.repository;
  const std::string commit = own.commit_of(name.revision).value_or("none");
  std::error_code ignored;
  if (!fs::exists(is_all ? own.folder : own.snapshot(commit), ignored)) {
    throw_error(ErrorCode::kNotFound, "{}: not in the cache {}; nanovllm list shows what is", text,
                cache);
  }
  const std::vector<FileLock> locks = lock_all(own, text);
  const auto any = [](auto&) { return true; };
  const int64_t before = size_of_blobs(own, any);
  if (is_all) {
    remove(own.folder);
    remove(own.locks);
  } else {
    const Listing files = own.files_of_snapshot(commit);
    for (const HubFile& file : name.type.empty() ? files : choose_files(files, name).files) {
      remove(own.snapshot(commit) + "/" + file.path);
    }
    remove_unused_blobs(own);
  }
  return before - size_of_blobs(own, any);
}

}  // namespace nanovllm::hub
