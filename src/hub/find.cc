#include "hub/find.h"

#include <filesystem>

#include "base/check.h"
#include "io/file.h"

namespace nanovllm::hub {

void read_index(const RepositoryCache& cache, const std::string& commit, const Listing& listing,
                Choice& choice) {
  const std::string path = cache.snapshot(commit) + "/" + kIndex;
  std::error_code ignored;
  if (choice.needs_index && std::filesystem::exists(path, ignored))
    add_shards(choice, listing, read_text_file(path), path);
}

std::string path_of(const RepositoryCache& cache, const std::string& commit, const Choice& choice) {
  return cache.snapshot(commit) + (choice.entry.empty() ? "" : "/" + choice.entry);
}

std::optional<std::string> find_in_cache(const RepositoryCache& cache, const HubName& name,
                                         bool trusting) {
  const auto commit = cache.commit_of(name.revision);
  if (!commit) return std::nullopt;
  auto listing = cache.listing_of(*commit);
  if (!listing && trusting) listing = cache.files_of_snapshot(*commit);
  if (!listing || listing->empty()) return std::nullopt;
  try {
    Choice choice = choose_files(*listing, name);
    read_index(cache, *commit, *listing, choice);
    if (choice.needs_index) return std::nullopt;
    for (const HubFile& file : choice.files) {
      if (!cache.holds(*commit, file)) return std::nullopt;
    }
    return path_of(cache, *commit, choice);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return std::nullopt;
    throw;
  }
}

}  // namespace nanovllm::hub
