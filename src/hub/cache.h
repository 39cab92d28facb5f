// The cache of Hugging Face's libraries: models--OWNER--MODEL with blobs (files by their hash),
// refs (what commit a branch or tag was) and snapshots (a commit's files, as links to blobs);
// .locks beside it. Ours alone is nanovllm/COMMIT.json, what the hub said of a commit.
// https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/listing.h"
#include "hub/name.h"
#include "io/stdio_file.h"

namespace nanovllm::hub {

// An exclusive lock of a file, as huggingface_hub takes them (flock), until it is closed. Nothing
// where somebody else holds it. Throws Error(kIo) where the file can't be made.
File take_lock(const std::string& path);
// Whether such a lock, which we hold, keeps others out. Some file systems grant it to everybody;
// those of networks may know this machine's locks only, and are not believed.
bool lock_holds(const std::string& path);

// How much of what others pulled is taken for the model, where nobody kept what the hub said.
enum class Trust {
  kSure,     // what the hub would give, too: nothing is missing that every model has, and a GGUF
             // file is of the type that was named, or of the one that is taken without a name
  kWhole,    // a GGUF file of any type, if it is the only one
  kWeights,  // and weights alone
};

// One model's part of the cache.
struct RepositoryCache {
  RepositoryCache(const std::string& cache, const std::string& repository);

  std::string snapshot(const std::string& commit) const { return folder + "/snapshots/" + commit; }
  std::string blob(const HubFile& file) const { return folder + "/blobs/" + file.hash; }
  std::string lock(const HubFile& file) const { return locks + "/" + file.hash + ".lock"; }
  // Where a blob grows: the one place where locks hold; else one of each process's own, of a name
  // that no other has. What an earlier pull left is in any of `parts()`.
  std::string part(const HubFile& file) const { return blob(file) + ".incomplete"; }
  std::string own_part(const HubFile& file) const;
  std::vector<std::string> parts(const HubFile& file) const;
  // Those of processes' own that nobody writes any more: untouched for longer than a pull waits,
  // where it is `now` by the clock that writes times there (a file server has its own).
  std::vector<std::string> idle_parts(const HubFile& file,
                                      std::filesystem::file_time_type now) const;
  // Bytes that the disk has to have free for it: what is in place already takes none, a copy of
  // what an earlier pull left does, and idle parts go once that is made.
  int64_t bytes_to_come(const HubFile& file) const;
  // What the hub said of a commit.
  std::string answer(const std::string& commit) const {
    return folder + "/nanovllm/" + commit + ".json";
  }

  // What a revision was when it was last pulled; a commit is itself.
  std::optional<std::string> commit_of(const std::string& revision) const;
  // What the hub said. Nothing where nobody kept it, or what was kept is of no use.
  std::optional<Listing> listing_of(const std::string& commit) const;
  // A stand-in for it: what is there, without hashes.
  Listing files_of_snapshot(const std::string& commit) const;
  // Whether it is there under its name, or as a blob that no name leads to yet; in its size.
  bool holds(const std::string& commit, const HubFile& file) const;
  bool holds_blob(const HubFile& file) const;

  // The files of the model at a commit; needs_index is left where the index is not there yet.
  // Throws as choose_files() and add_shards() do.
  Choice choose(const std::string& commit, const Listing& listing, const HubName& name) const;
  // The path of a model of which all is there that we read, by what the hub said of it, or where
  // nobody kept that, as of what huggingface_hub pulled, by `trust`.
  std::optional<std::string> find(const HubName& name, Trust trust) const;

  // Throw Error(kIo).
  void keep_listing(const std::string& commit, const Listing& listing) const;
  void keep_ref(const std::string& revision, const std::string& commit) const;
  void link(const std::string& commit, const HubFile& file) const;  // the blob under its name

  std::string folder, locks;
};

void make_folder(const std::string& path);
// The names in a folder in their order, or the paths of all that is below it; none where there is
// no such folder. Throws Error(kIo) where it can't be read.
std::vector<std::string> names_in(const std::string& folder, bool below = false);
int64_t size_of(const std::string& path);  // bytes; -1 where there is no such file
// What couldn't be written, why, and what to do.
[[noreturn]] void throw_write_error(const std::string& path, int error);

}  // namespace nanovllm::hub
