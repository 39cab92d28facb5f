#include "hub/inventory.h"

#include <sys/stat.h>

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

constexpr int kMaxLinks = 8;  // that lead to one file

// Bytes of files on their way.
int64_t size_of_parts(const RepositoryCache& cache) {
  int64_t size = 0;
  for (const std::string& name : names_in(cache.folder + "/blobs")) {
    if (name.ends_with(".incomplete")) size += size_of(cache.folder + "/blobs/" + name);
  }
  return size;
}

// Bytes that nobody has any more once the folder is gone: a file that has names elsewhere, too, is
// none of them.
int64_t own_bytes(const std::string& folder) {
  std::map<ino_t, nlink_t> num_names;
  int64_t size = 0;
  for (const std::string& name : names_in(folder, true)) {
    const fs::path path = fs::path(folder) / name;
    struct stat info = {};
    const bool is_file = ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    if (is_file && ++num_names[info.st_ino] == info.st_nlink) size += info.st_size;
  }
  return size;
}

// Where it is, with no link on the way there; it may be one itself.
fs::path address_of(const fs::path& path) {
  std::error_code ignored;
  return fs::weakly_canonical(path.parent_path(), ignored) / path.filename();
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
    const auto path = cache.find(name, Trust::kSure);
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

// Blobs that a snapshot leads to: of any repository, as programs that look for equal files make one
// a link to another.
std::set<fs::path> used_blobs(const std::string& cache) {
  std::set<fs::path> used;
  std::error_code ignored;  // of what is no link
  for (const std::string& repository : names_in(cache)) {
    const std::string snapshots = fmt::format("{}/{}/snapshots/", cache, repository);
    if (!repository.starts_with(kPrefix)) continue;
    for (const std::string& path : names_in(snapshots, true)) {
      fs::path at = snapshots + path;
      for (int hop = 0; hop < kMaxLinks && fs::is_symlink(at, ignored); ++hop) {
        at = address_of(at.parent_path() / fs::read_symlink(at, ignored));
        used.insert(at);
      }
    }
  }
  return used;
}

void remove_unused_blobs(const std::string& cache, const RepositoryCache& own) {
  const std::set<fs::path> used = used_blobs(cache);
  for (const std::string& name : names_in(own.folder + "/blobs")) {
    const std::string blob = own.folder + "/blobs/" + name;
    if (!used.contains(address_of(blob))) remove(blob);
  }
}

// All there is of a repository, but for blobs that another one leads to.
void remove_repository(const std::string& cache, const RepositoryCache& own) {
  for (const std::string& name : names_in(own.folder)) {
    if (name != "blobs") remove(own.folder + "/" + name);
  }
  remove_unused_blobs(cache, own);
  if (!names_in(own.folder + "/blobs").empty()) return;
  std::error_code ignored;
  remove(fs::weakly_canonical(own.folder, ignored).string());  // elsewhere, where it is a link
  remove(own.folder);
  remove(own.locks);
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
    const int64_t coming = size_of_parts(own);
    const size_t num_before = models.size();
    for (const std::string& commit : names_in(own.folder + "/snapshots")) {
      name.revision = commit == main ? "main" : commit;
      if (is_hash(commit, kSha1Digits)) add_snapshot(models, own, name, coming);
    }
    if (coming > 0 && models.size() == num_before) {
      models.push_back({.name = name.repository, .num_bytes = coming, .is_complete = false});
    }
  }
  return models;
}

int64_t remove_model(const std::string& cache, const std::string& given) {
  const std::string text = exact_name_of_address(given);
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
  const int64_t before = own_bytes(own.folder);
  if (is_all) {
    remove_repository(cache, own);
  } else if (name.type.empty()) {
    remove_commit(own, commit);
  } else {
    for (const HubFile& file : choose_files(own.files_of_snapshot(commit), name).files) {
      remove(own.snapshot(commit) + "/" + file.path);
    }
  }
  if (!is_all) remove_unused_blobs(cache, own);
  return before - own_bytes(own.folder);
}

}  // namespace nanovllm::hub
