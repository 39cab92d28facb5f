#include "hub/cache.h"

#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "base/check.h"
#include "io/file.h"
#include "io/file_lock.h"
#include "io/output_file.h"

namespace nanovllm::hub {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOwn = ".nanovllm-";  // begins the ending of a part of a process's own
// A pull that is refused again and again writes nothing for ten minutes and more.
constexpr std::chrono::minutes kIdle{20};

// Into another file first, which then takes the place of an older one.
void write_whole(const std::string& path, std::string_view text) {
  make_folder(fs::path(path).parent_path());
  const Draft draft(path);
  std::ofstream file(draft.path(), std::ios::binary);
  file << text;
  file.close();
  const int error = file ? draft.take_place() : errno;
  if (error != 0) throw_write_error(path, error);
}

}  // namespace

int64_t size_of(const std::string& path) {
  std::error_code ignored;
  return static_cast<int64_t>(fs::file_size(path, ignored));  // -1 is what it returns, too
}

std::vector<std::string> names_in(const std::string& folder, bool below) {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().lexically_relative(folder).string());
    if (!below) entry.disable_recursion_pending();
  }
  if (error) throw_error(ErrorCode::kIo, "{}: can't be read: {}", folder, error.message());
  std::ranges::sort(names);
  return names;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_write_error(path, error.value());
}

void throw_write_error(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw_error(
      ErrorCode::kIo, "{}: can't be written: {}; {}", path, std::generic_category().message(error),
      is_full ? "free some space, or set HF_HUB_CACHE to a folder on another disk; what has "
                "come is kept, and the next pull goes on from there"
              : "set HF_HUB_CACHE to a folder that you may write to");
}

File take_lock(const std::string& path) {
  make_folder(fs::path(path).parent_path());
  FileLock lock = lock_file(path);
  if (!lock.file && lock.error != EWOULDBLOCK) throw_write_error(path, lock.error);
  return std::move(lock.file);
}

bool lock_holds(const std::string& path) {
  constexpr auto kOfThisMachine = std::to_array<unsigned>(
      {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC, OVERLAYFS_SUPER_MAGIC});
  struct statfs system = {};
  if (::statfs(path.c_str(), &system) != 0 ||
      std::ranges::find(kOfThisMachine, static_cast<unsigned>(system.f_type)) ==
          kOfThisMachine.end()) {
    return false;
  }
  const File another(std::fopen(path.c_str(), "ae"));
  return another && ::flock(::fileno(another.get()), LOCK_EX | LOCK_NB) != 0 &&
         errno == EWOULDBLOCK;
}

RepositoryCache::RepositoryCache(const std::string& cache, const std::string& repository) {
  std::string name = "models--" + repository;
  name.replace(name.find('/'), 1, "--");
  folder = cache + "/" + name;
  locks = cache + "/.locks/" + name;
}

std::string RepositoryCache::own_part(const HubFile& file) const {
  std::random_device random;
  return fmt::format("{}{}{:08x}{:08x}.incomplete", blob(file), kOwn, random(), random());
}

std::vector<std::string> RepositoryCache::parts(const HubFile& file) const {
  std::vector<std::string> found;
  if (size_of(part(file)) >= 0) found.push_back(part(file));
  for (const std::string& name : names_in(folder + "/blobs")) {
    if (name.starts_with(file.hash + kOwn)) found.push_back(folder + "/blobs/" + name);
  }
  return found;
}

std::vector<std::string> RepositoryCache::idle_parts(const HubFile& file,
                                                     fs::file_time_type now) const {
  std::vector<std::string> found = parts(file);
  const auto is_busy = [&](const std::string& path) {
    std::error_code error;  // of what is gone by now
    const auto written = fs::last_write_time(path, error);
    return path == part(file) || error || now - written < kIdle;
  };
  std::erase_if(found, is_busy);
  return found;
}

int64_t RepositoryCache::bytes_to_come(const HubFile& file) const {
  const std::vector<std::string> left = parts(file);
  if (left.empty()) return file.size;
  int64_t largest = 0, idle = 0;
  for (const std::string& path : left) largest = std::max(largest, size_of(path));
  largest = std::min(largest, file.size);  // what is larger is not copied to its end
  for (const std::string& path : idle_parts(file, fs::file_time_type::clock::now())) {
    idle += std::max<int64_t>(0, size_of(path));
  }
  const File own_lock = take_lock(lock(file));
  const bool is_shared = !own_lock || lock_holds(lock(file));
  const int64_t in_place = is_shared ? std::max<int64_t>(0, size_of(part(file))) : 0;
  return std::max<int64_t>(0, std::max(largest, file.size - idle) - in_place);
}

std::optional<std::string> RepositoryCache::commit_of(const std::string& revision) const {
  if (is_hash(revision, kSha1Digits)) return revision;
  std::string commit;
  std::ifstream(folder + "/refs/" + revision) >> commit;
  return is_hash(commit, kSha1Digits) ? std::optional(commit) : std::nullopt;
}

std::optional<Listing> RepositoryCache::listing_of(const std::string& commit) const {
  try {
    Listing listing = parse_listing(read_text_file(answer(commit)), answer(commit)).second;
    return tells_sizes(listing) ? std::optional(std::move(listing)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // it is asked for again
  }
}

Listing RepositoryCache::files_of_snapshot(const std::string& commit) const {
  Listing listing;
  for (const std::string& path : names_in(snapshot(commit), true)) {
    const int64_t size = size_of(snapshot(commit) + "/" + path);
    if (size >= 0) listing.push_back({.path = path, .size = size});
  }
  return listing;
}

bool RepositoryCache::holds(const std::string& commit, const HubFile& file) const {
  return size_of(snapshot(commit) + "/" + file.path) == file.size;
}
bool RepositoryCache::holds_blob(const HubFile& file) const {
  return size_of(blob(file)) == file.size;
}

Choice RepositoryCache::choose(const std::string& commit, const Listing& listing,
                               const HubName& name) const {
  Choice choice = choose_files(listing, name);
  const std::string index = snapshot(commit) + "/" + kIndex;
  if (choice.needs_index && size_of(index) > 0) {
    add_shards(choice, listing, read_text_file(index), index);
  }
  return choice;
}

std::optional<std::string> RepositoryCache::find(const HubName& name, Trust trust) const {
  const auto commit = commit_of(name.revision);
  if (!commit) return std::nullopt;
  auto listing = listing_of(*commit);
  const bool is_told = listing.has_value();
  if (!is_told) listing = files_of_snapshot(*commit);
  try {
    const Choice choice = choose(*commit, *listing, name);
    const auto is_there = [&](const HubFile& file) {
      return !is_read(file) || holds(*commit, file);
    };
    const bool is_whole = !choice.needs_index && std::ranges::all_of(choice.files, is_there);
    if (!is_whole) return std::nullopt;
    if (!is_told && trust != Trust::kWeights && !is_enough(choice)) return std::nullopt;
    if (!is_told && trust == Trust::kSure && !is_sure(choice, name)) return std::nullopt;
    return snapshot(*commit) + choice.entry;
  } catch (const Error&) {
    return std::nullopt;  // a pull says what is wrong
  }
}

void RepositoryCache::keep_listing(const std::string& commit, const Listing& listing) const {
  if (!listing_of(commit)) write_whole(answer(commit), listing_text(commit, listing));
}

void RepositoryCache::keep_ref(const std::string& revision, const std::string& commit) const {
  if (commit_of(revision) != commit) write_whole(folder + "/refs/" + revision, commit);
}

void RepositoryCache::link(const std::string& commit, const HubFile& file) const {
  const fs::path pointer = snapshot(commit) + "/" + file.path;
  make_folder(pointer.parent_path());
  std::error_code error;
  const Draft draft(pointer);
  fs::create_symlink(fs::path(blob(file)).lexically_relative(pointer.parent_path()), draft.path(),
                     error);
  // Where there are no links, the file itself stands there, as with huggingface_hub.
  fs::rename(error ? blob(file) : draft.path(), pointer, error);
  if (error) throw_write_error(pointer, error.value());
}

}  // namespace nanovllm::hub
