// Whether a model is in the cache.
#pragma once

#include <optional>
#include <string>

#include "hub/cache.h"

namespace nanovllm::hub {

// The path of a model that is there whole, by the list of its files that was kept. Where none was,
// as of what older versions of huggingface_hub pulled, `trusting` takes what is there for all.
// Throws Error(kCorruptData) for an index that is none.
std::optional<std::string> find_in_cache(const RepositoryCache& cache, const HubName& name,
                                         bool trusting);

// Adds an index's shards, if the index is there.
void read_index(const RepositoryCache& cache, const std::string& commit, const Listing& listing,
                Choice& choice);

std::string path_of(const RepositoryCache& cache, const std::string& commit, const Choice& choice);

}  // namespace nanovllm::hub
