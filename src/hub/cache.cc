#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPrefix = "models--";

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_write_error(path.string(), error.value());
}

bool has_size(const std::string& path, int64_t size) {
  std::error_code error;
  return static_cast<int64_t>(fs::file_size(path, error)) == size && !error;
}

// Into another file first, which then takes the place of an older one.
void write_whole(const std::string& path, std::string_view text) {
  make_folder(fs::path(path).parent_path());
  const std::string draft = fmt::format("{}.{}.tmp", path, ::getpid());
  std::FILE* file = std::fopen(draft.c_str(), "we");
  if (file == nullptr) throw_write_error(path, errno);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  const bool is_closed = std::fclose(file) == 0;
  if (is_written && is_closed && std::rename(draft.c_str(), path.c_str()) == 0) return;
  const int reason = is_written ? errno : error;
  ::unlink(draft.c_str());
  throw_write_error(path, reason);
}

}  // namespace

void throw_write_error(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw_error(
      ErrorCode::kIo, "{}: can't be written: {}; {}", path, std::generic_category().message(error),
      is_full ? "free some space, or set HF_HUB_CACHE to a folder on another disk; what has "
                "come is kept, and the next pull goes on from there"
              : "set HF_HUB_CACHE to a folder that you may write to");
}

std::optional<FileLock> FileLock::try_take(const std::string& path) {
  make_folder(fs::path(path).parent_path());
  while (true) {
    FileLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
    if (lock.fd_ < 0) throw_write_error(path, errno);
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
      // A file system without locks, as some of networks are, is no reason not to pull.
      if (errno == EWOULDBLOCK) return std::nullopt;
      return lock;
    }
    // Who held it before may have taken the file away.
    struct stat own = {}, now = {};
    if (::fstat(lock.fd_, &own) == 0 && ::stat(path.c_str(), &now) == 0 && own.st_ino == now.st_ino)
      return lock;
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

RepositoryCache::RepositoryCache(std::string cache, const std::string& repository)
    : root_(std::move(cache)), name_(kPrefix + repository) {
  name_.replace(name_.find('/'), 1, "--");
  folder_ = root_ + "/" + name_;
}

std::string RepositoryCache::snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}
std::string RepositoryCache::blob(const std::string& hash) const {
  return folder_ + "/blobs/" + hash;
}
std::string RepositoryCache::locks() const { return root_ + "/.locks/" + name_; }
std::string RepositoryCache::lock(const std::string& hash) const {
  return locks() + "/" + hash + ".lock";
}

std::optional<std::string> RepositoryCache::commit_of(const std::string& revision) const {
  if (is_hash(revision, kSha1Digits)) return revision;
  const std::string path = folder_ + "/refs/" + revision;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  std::string commit = read_text_file(path, 4096);
  while (commit.ends_with('\n')) commit.pop_back();
  if (!is_hash(commit, kSha1Digits)) return std::nullopt;
  return commit;
}

std::optional<Listing> RepositoryCache::listing_of(const std::string& commit) const {
  const std::string path = folder_ + "/trees/" + commit + ".json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    return parse_tree(read_text_file(path), path);
  } catch (const Error&) {
    return std::nullopt;  // of a later form, or damaged: it is asked for again
  }
}

Listing RepositoryCache::files_of_snapshot(const std::string& commit) const {
  Listing listing;
  std::error_code error;
  const fs::path folder = snapshot(commit);
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    listing.push_back({.path = entry->path().lexically_relative(folder).generic_string(),
                       .size = static_cast<int64_t>(entry->file_size(ignored))});
  }
  std::ranges::sort(listing, {}, &HubFile::path);
  return listing;
}

bool RepositoryCache::holds(const std::string& commit, const HubFile& file) const {
  return has_size(snapshot(commit) + "/" + file.path, file.size);
}
bool RepositoryCache::holds_blob(const HubFile& file) const {
  return has_size(blob(file.hash()), file.size);
}

void RepositoryCache::prepare(const std::string& commit) const {
  for (const std::string& path : {folder_ + "/blobs", folder_ + "/refs", snapshot(commit), locks()})
    make_folder(path);
}

void RepositoryCache::keep_listing(const std::string& commit, const Listing& listing) const {
  write_whole(folder_ + "/trees/" + commit + ".json", tree_of(listing));
}

void RepositoryCache::keep_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit || commit_of(revision) == commit) return;
  write_whole(folder_ + "/refs/" + revision, commit);
}

void RepositoryCache::link(const std::string& commit, const HubFile& file) const {
  const fs::path pointer = snapshot(commit) + "/" + file.path;
  make_folder(pointer.parent_path());
  const fs::path target = fs::path(blob(file.hash())).lexically_relative(pointer.parent_path());
  std::error_code error;
  if (fs::read_symlink(pointer, error) == target) return;
  fs::remove(pointer, error);
  fs::create_symlink(target, pointer, error);
  // Where there are no links, the file itself stands there, as with huggingface_hub.
  if (error && error != std::errc::file_exists) fs::rename(blob(file.hash()), pointer, error);
  if (error && error != std::errc::file_exists) throw_write_error(pointer.string(), error.value());
}

}  // namespace nanovllm::hub
