// Files from a hub into the cache: in parts over several connections, from where an earlier pull
// ended, checked by size and hash.
#pragma once

#include <string>

#include "hub/cache.h"
#include "hub/settings.h"
#include "nanovllm/hub.h"

namespace nanovllm::hub {

// What a path of the hub gives, at most 8 MiB.
std::string download_text(const Settings& settings, const std::string& what,
                          const std::string& path, const PullOptions& options);

// Pulls those files of a commit that are not there yet. Throws Error (see resolve_model()), and
// what on_progress throws.
void download(const Settings& settings, const RepositoryCache& cache, const std::string& repository,
              const std::string& commit, Listing files, const PullOptions& options);

}  // namespace nanovllm::hub
