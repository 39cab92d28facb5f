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
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw_error(ErrorCode::kIo, "{}: can't be listed: {}", folder, error.message());
  std::ranges::sort(names);
  return names;
}

// Bytes of the blobs that fit.
template <typename Fits>
int64_t size_of_blobs(const RepositoryCache& cache, const Fits& fits) {
  int64_t size = 0;
  for (const std::string& name : names_in(cache.folder() + "/blobs")) {
    std::error_code error;
    const auto bytes = fs::file_size(cache.blob(name), error);
    if (!error && fits(name)) size += static_cast<int64_t>(bytes);
  }
  return size;
}

// Branches and tags, by the commits that they were.
std::multimap<std::string, std::string> refs_of(const RepositoryCache& cache) {
  std::multimap<std::string, std::string> refs;
  std::error_code error;
  const fs::path folder = cache.folder() + "/refs";
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().lexically_relative(folder).generic_string();
    if (!is_safe_path(name)) continue;
    if (const auto commit = cache.commit_of(name)) refs.emplace(*commit, name);
  }
  return refs;
}

void add_model(std::vector<CachedModel>& models, const RepositoryCache& cache, const HubName& name,
               int64_t num_bytes) {
  CachedModel model{.name = name.repository, .num_bytes = num_bytes};
  if (name.revision != "main") model.name += "@" + name.revision;
  if (!name.type.empty()) model.name += ":" + name.type;
  const auto path = find_in_cache(cache, name, true);
  model.is_complete = path.has_value();
  if (path) model.path = *path;
  models.push_back(std::move(model));
}

// Those of one commit: the folder's, and one for each type of GGUF.
void add_snapshot(std::vector<CachedModel>& models, const RepositoryCache& cache, HubName name,
                  const std::string& commit) {
  std::map<std::string, int64_t> sizes;  // by type; "" = of all that is not GGUF
  bool has_gguf = false, has_weights = false;
  for (const HubFile& file : cache.files_of_snapshot(commit)) {
    const bool is_gguf = file.path.ends_with(".gguf");
    sizes[is_gguf ? type_of_gguf(file.path) : ""] += file.size;
    has_gguf = has_gguf || is_gguf;
    has_weights = has_weights || file.path.ends_with(".safetensors");
  }
  for (const auto& [type, size] : sizes) {
    name.type = type;
    if (!type.empty() || has_weights || !has_gguf) add_model(models, cache, name, size);
  }
}

// So that nobody pulls what is being taken away.
std::vector<FileLock> lock_all(const RepositoryCache& cache, const std::string& name) {
  std::vector<FileLock> locks;
  for (const std::string& file : names_in(cache.locks())) {
    auto lock = FileLock::try_take(cache.locks() + "/" + file);
    if (!lock) {
      throw_error(ErrorCode::kUnavailable, "{}: is being pulled by another program; end that first",
                  name);
    }
    locks.push_back(std::move(*lock));
  }
  return locks;
}

void remove_all(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_write_error(path, error.value());
}

// Names of blobs that some snapshot has a link to.
std::set<std::string> used_blobs(const RepositoryCache& cache) {
  std::set<std::string> used;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(cache.folder() + "/snapshots", error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code is_no_link;
    used.insert(fs::read_symlink(entry->path(), is_no_link).filename().string());
  }
  return used;
}

// The links of one revision, or of one type of it.
void remove_links(const RepositoryCache& cache, const HubName& name, const std::string& commit) {
  if (name.type.empty()) {
    for (const auto& [of_commit, ref] : refs_of(cache)) {
      if (of_commit == commit) remove_all(cache.folder() + "/refs/" + ref);
    }
    remove_all(cache.folder() + "/trees/" + commit + ".json");
    return remove_all(cache.snapshot(commit));
  }
  for (const HubFile& file : choose_files(cache.files_of_snapshot(commit), name).files) {
    remove_all(cache.snapshot(commit) + "/" + file.path);
  }
}

}  // namespace

std::vector<CachedModel> list_models(const std::string& cache) {
  std::vector<CachedModel> models;
  for (const std::string& folder : names_in(cache)) {
    if (!folder.starts_with(kPrefix)) continue;
    std::string repository = folder.substr(kPrefix.size());
    if (const size_t dashes = repository.find("--"); dashes != repository.npos)
      repository.replace(dashes, 2, 1, '/');
    if (!parse_name(repository)) continue;
    const RepositoryCache own(cache, repository);
    const auto refs = refs_of(own);
    const size_t num_before = models.size();
    for (const std::string& commit : names_in(own.folder() + "/snapshots")) {
      const auto [first, last] = refs.equal_range(commit);
      const bool is_main =
          std::any_of(first, last, [](const auto& ref) { return ref.second == "main"; });
      const std::string revision = is_main ? "main" : first != last ? first->second : commit;
      add_snapshot(models, own, {.repository = repository, .revision = revision}, commit);
    }
    const int64_t coming =
        size_of_blobs(own, [](const std::string& name) { return name.ends_with(".incomplete"); });
    if (coming > 0 && models.size() == num_before)
      models.push_back({.name = repository, .is_complete = false});
    for (size_t i = num_before; i < models.size(); ++i) {
      if (!models[i].is_complete) models[i].num_bytes += coming;
    }
  }
  return models;
}

int64_t remove_model(const std::string& cache, const std::string& text) {
  const HubName name = expect_name(text);
  const RepositoryCache own(cache, name.repository);
  const bool is_whole = text == name.repository;
  const auto commit = own.commit_of(name.revision);
  std::error_code ignored;
  if (!fs::exists(is_whole || !commit ? own.folder() : own.snapshot(*commit), ignored) ||
      (!is_whole && !commit)) {
    throw_error(ErrorCode::kNotFound, "{}: not in the cache {}; nanovllm list shows what is", text,
                cache);
  }
  const std::vector<FileLock> locks = lock_all(own, text);
  const auto any = [](const std::string&) { return true; };
  const int64_t before = size_of_blobs(own, any);
  if (is_whole) {
    remove_all(own.folder());
    remove_all(own.locks());
    return before;
  }
  remove_links(own, name, *commit);
  const std::set<std::string> used = used_blobs(own);
  for (const std::string& blob : names_in(own.folder() + "/blobs")) {
    if (!used.contains(blob)) remove_all(own.blob(blob));
  }
  return before - size_of_blobs(own, any);
}

}  // namespace nanovllm::hub
