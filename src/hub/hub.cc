// resolve_model(): what a name means, whether it is there, and pulling it where it is not.
#include "nanovllm/hub.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/http.h"
#include "hub/settings.h"

namespace nanovllm {
namespace hub {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string pull(const Settings& settings, const RepositoryCache& cache, const HubName& name,
                 const PullOptions& options) {
  const std::string what = name.repository + (name.revision == "main" ? "" : "@" + name.revision);
  const std::string answer = download_text(
      settings, what,
      fmt::format("/api/models/{}/revision/{}?blobs=true", name.repository, escaped(name.revision)),
      options);
  const auto [commit, listing] =
      parse_listing(answer, fmt::format("{}: what {} answers", what, settings.shown));
  Choice choice = cache.choose(commit, listing, name);
  cache.keep_answer(commit, answer);
  if (choice.needs_index) {  // only it says what else is needed
    const auto index = std::ranges::find(listing, kIndex, &HubFile::path);
    PullOptions waiting = options;  // its few bytes are no progress
    waiting.on_progress = [&](const PullProgress& progress) {
      if (options.on_progress) options.on_progress({.note = progress.note});
    };
    download(settings, cache, name.repository, commit, {*index}, waiting);
    choice = cache.choose(commit, listing, name);
  }
  download(settings, cache, name.repository, commit, choice.files, options);
  // The last: until then a branch is what was there whole before.
  cache.keep_ref(name.revision, commit);
  return cache.snapshot(commit) + choice.entry;
}

std::string resolve(const std::string& model, const HubName& name, const PullOptions& options) {
  const Settings settings = read_settings();
  const RepositoryCache cache(settings.cache, name.repository);
  const bool is_offline = settings.offline || options.offline;
  if (!options.update || is_offline) {
    if (auto path = cache.find(name, is_offline)) return *path;
  }
  if (is_offline) {
    throw_error(ErrorCode::kNotFound,
                "{}: not in the cache {}, or not all of it, and nothing may be pulled "
                "(HF_HUB_OFFLINE); pull it where there is a network",
                model, settings.cache);
  }
  const std::string owner = name.repository.substr(0, name.repository.find('/'));
  if (!options.update && exists(owner)) {
    throw_error(
        ErrorCode::kNotFound,
        "{}: no such folder or file; expected a Hugging Face model folder or a GGUF file, or, "
        "if the model of that name on the hub is meant, run nanovllm pull {} first, as there "
        "is a folder {} here",
        model, model, owner);
  }
  try {
    return pull(settings, cache, name, options);
  } catch (const Error& error) {
    // No network; but others may have pulled it.
    if (error.code() != ErrorCode::kUnavailable || options.update) throw;
    if (auto path = cache.find(name, true)) return *path;
    throw;
  }
}

}  // namespace
}  // namespace hub

std::string resolve_model(const std::string& model, const PullOptions& options) {
  if (hub::exists(model)) return model;
  const auto name = hub::parse_name(model);
  return name ? hub::resolve(model, *name, options) : model;
}

}  // namespace nanovllm
