#include "hub/find.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "io/file.h"

namespace nanovllm::hub {

Choice choose_at(const RepositoryCache& cache, const std::string& commit, const Listing& listing,
                 const HubName& name) {
  Choice choice = choose_files(listing, name);
  const std::string index = cache.snapshot(commit) + "/" + kIndex;
  std::error_code ignored;
  if (choice.needs_index && std::filesystem::exists(index, ignored))
    add_shards(choice, listing, read_text_file(index), index);
  return choice;
}

std::optional<std::string> find_in_cache(const RepositoryCache& cache, const HubName& name,
                                         bool trusting) {
  const auto commit = cache.commit_of(name.revision);
  if (!commit) return std::nullopt;
  auto listing = cache.listing_of(*commit);
  if (!listing && trusting) listing = cache.files_of_snapshot(*commit);
  if (!listing) return std::nullopt;
  try {
    const Choice choice = choose_at(cache, *commit, *listing, name);
    const auto is_there = [&](const HubFile& file) { return cache.holds(*commit, file); };
    if (choice.needs_index || !std::ranges::all_of(choice.files, is_there)) return std::nullopt;
    return cache.snapshot(*commit) + choice.entry;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) return std::nullopt;
    throw;
  }
}

}  // namespace nanovllm::hub
