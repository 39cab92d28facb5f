#include "hub/inventory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.h"
#include "hub/cache.h"

namespace nanovllm::hub {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "models--";

// Bytes of the blobs whose names end so.
int64_t size_of_blobs(const RepositoryCache& cache, std::string_view ending) {
  int64_t size = 0;
  for (const std::string& name : names_in(cache.folder + "/blobs")) {
    if (name.ends_with(ending)) size += size_of(cache.folder + "/blobs/" + name);
  }
  return size;
}

// Those of one commit: the folder's, and one for each type of GGUF. `coming`: bytes of blobs that
// are not whole.
void add_snapshot(std::vector<CachedModel>& models, const RepositoryCache& cache, HubName name,
                  int64_t coming) {
  std::map<std::string, int64_t> sizes;  // by type; "" = of all that is not GGUF
  bool has_weights = false;
  for (const HubFile& file : cache.files_of_snapshot(*cache.commit_of(name.revision))) {
    sizes[file.path.ends_with(".gguf") ? type_of_gguf(file.path) : ""] += file.size;
    has_weights = has_weights || file.path.ends_with(".safetensors");
  }
  for (const auto& [type, size] : sizes) {
    if (type.empty() && !has_weights && sizes.size() > 1) continue;  // texts beside GGUF files
    name.type = type;
    const auto path = cache.find(name, true);
    models.push_back({.name = name.text(),
                      .num_bytes = size + (path ? 0 : coming),
                      .is_complete = path.has_value(),
                      .path = path.value_or("")});
  }
}

// So that nobody pulls what is being taken away.
std::vector<File> lock_all(const RepositoryCache& cache, const std::string& name) {
  std::vector<File> locks;
  for (const std::string& file : names_in(cache.locks)) {
    locks.push_back(take_lock(cache.locks + "/" + file));
    if (!locks.back()) {
      throw_error(ErrorCode::kUnavailable, "{}: is being pulled by another program; end that first",
                  name);
    }
  }
  return locks;
}

void remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_write_error(path, error.value());
}

// A commit and all that names it.
void remove_commit(const RepositoryCache& cache, const std::string& commit) {
  remove(cache.snapshot(commit));
  remove(cache.answer(commit));
  for (const std::string& revision : names_in(cache.folder + "/refs", true)) {
    if (cache.commit_of(revision) == commit) remove(cache.folder + "/refs/" + revision);
  }
}

// What no snapshot has a link to any more.
void remove_unused_blobs(const RepositoryCache& cache) {
  std::set<std::string> used;
  const std::string snapshots = cache.folder + "/snapshots/";
  for (const std::string& path : names_in(snapshots, true)) {
    std::error_code ignored;  // of what is no link
    used.insert(fs::read_symlink(snapshots + path, ignored).filename());
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
    const int64_t coming = size_of_blobs(own, ".incomplete");
    const size_t num_before = models.size();
    for (const std::string& commit : names_in(own.folder + "/snapshots")) {
      name.revision = commit == main ? "main" : commit;
      if (is_hash(commit, kSha1Digits)) add_snapshot(models, own, name, coming);
    }
    if (coming > 0 && models.size() == num_before)
      models.push_back({.name = name.repository, .num_bytes = coming, .is_complete = false});
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
  const std::vector<File> locks = lock_all(own, text);
  const int64_t before = size_of_blobs(own, "");
  if (is_all) {
    remove(own.folder);
    remove(own.locks);
  } else if (name.type.empty()) {
    remove_commit(own, commit);
  } else {
    for (const HubFile& file : choose_files(own.files_of_snapshot(commit), name).files) {
      remove(own.snapshot(commit) + "/" + file.path);
    }
  }
  if (!is_all) remove_unused_blobs(own);
  return before - size_of_blobs(own, "");
}

}  // namespace nanovllm::hub
