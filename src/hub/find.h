// Whether a model is in the cache.
#pragma once

#include <optional>
#include <string>

#include "hub/cache.h"

namespace nanovllm::hub {

// The files of the model at a commit; needs_index is left where the index is not there yet. Throws
// as choose_files() and add_shards() do.
Choice choose_at(const RepositoryCache& cache, const std::string& commit, const Listing& listing,
                 const HubName& name);

// The path of a model that is there whole, by what the hub said of it. Where nobody kept that, as
// of what huggingface_hub pulled, `trusting` takes what is there for all. Throws
// Error(kCorruptData) for an index that is none.
std::optional<std::string> find_in_cache(const RepositoryCache& cache, const HubName& name,
                                         bool trusting);

}  // namespace nanovllm::hub
