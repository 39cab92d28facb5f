// Files from a hub into the cache: in parts over several connections, from where an earlier pull
// ended, checked by size and hash.
#pragma once

#include <string>

#include "hub/cache.h"
#include "hub/http.h"
#include "nanovllm/hub.h"

namespace nanovllm::hub {

// Pulls those files of a commit that are not there yet. `others` are bytes of the model that are
// none of these files', for the progress. Throws Error (see resolve_model()), and what on_progress
// throws.
void download(const Settings& settings, const RepositoryCache& cache, const std::string& repository,
              const std::string& commit, const Listing& files, const PullOptions& options);

// The name of what is being downloaded, of which the beginning is there.
std::string incomplete(const RepositoryCache& cache, const HubFile& file);

}  // namespace nanovllm::hub
