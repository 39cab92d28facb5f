// The cache of Hugging Face's libraries: models--OWNER--MODEL with blobs (files by their hash),
// refs (what commit a branch or tag was), snapshots (a commit's files, as links to blobs), trees (a
// commit's listing); and .locks beside it.
// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hub/listing.h"
#include "hub/name.h"

namespace nanovllm::hub {

// An exclusive lock of a file, as huggingface_hub takes them (flock). Ends with the object.
class FileLock {
 public:
  // Nothing where somebody else holds it. Throws Error(kIo) where the file can't be made.
  static std::optional<FileLock> try_take(const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

// One model's part of the cache. What is written appears at once, whole.
class RepositoryCache {
 public:
  RepositoryCache(std::string cache, const std::string& repository);

  const std::string& root() const { return root_; }  // of all models
  const std::string& folder() const { return folder_; }
  std::string snapshot(const std::string& commit) const;
  std::string blob(const std::string& hash) const;
  std::string lock(const std::string& hash) const;
  std::string locks() const;

  // What a revision was when it was last pulled; a commit is itself.
  std::optional<std::string> commit_of(const std::string& revision) const;
  // Nothing where none was kept, or what was kept is of no use.
  std::optional<Listing> listing_of(const std::string& commit) const;
  // Stand-ins for a listing: names only.
  Listing files_of_snapshot(const std::string& commit) const;
  // Whether it is there under its name, or as a blob that no name leads to yet; in its size.
  bool holds(const std::string& commit, const HubFile& file) const;
  bool holds_blob(const HubFile& file) const;

  // Throw Error(kIo).
  void prepare(const std::string& commit) const;  // makes the folders
  void keep_listing(const std::string& commit, const Listing& listing) const;
  void keep_ref(const std::string& revision, const std::string& commit) const;
  void link(const std::string& commit, const HubFile& file) const;

 private:
  std::string root_, name_, folder_;
};

// Throws Error(kIo) for what couldn't be written: what, where, and what to do.
[[noreturn]] void throw_write_error(const std::string& path, int error);

}  // namespace nanovllm::hub
