// resolve_model(): what a name means, whether it is there, and pulling it where it is not.
#include "nanovllm/hub.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/find.h"
#include "hub/http.h"
#include "hub/listing.h"
#include "hub/settings.h"
#include "io/json.h"

namespace nanovllm {
namespace hub {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

class Pull {
 public:
  Pull(Settings settings, const HubName& name, const PullOptions& options)
      : settings_(std::move(settings)),
        name_(name),
        options_(options),
        cache_(settings_.cache, name.repository) {}

  std::string run() {
    ask();
    Choice choice = choose_files(listing_, name_);
    cache_.prepare(commit_);
    cache_.keep_listing(commit_, listing_);
    if (choice.needs_index) {
      PullOptions quiet = options_;  // its few bytes are no progress
      quiet.on_progress = [this](const PullProgress&) { tell({}); };
      download(settings_, cache_, name_.repository, commit_, {*index()}, quiet);
      read_index(cache_, commit_, listing_, choice);
    }
    download(settings_, cache_, name_.repository, commit_, choice.files, options_);
    // The last: until then a branch is what was there whole before.
    cache_.keep_ref(name_.revision, commit_);
    return path_of(cache_, commit_, choice);
  }

 private:
  // What the repository holds now.
  void ask() {
    const std::string what =
        name_.revision == "main" ? name_.repository : name_.repository + "@" + name_.revision;
    std::string revision = name_.revision;
    for (size_t slash = 0; (slash = revision.find('/', slash)) != revision.npos;)
      revision.replace(slash, 1, "%2F");
    TextFetch fetch(
        what, fmt::format("/api/models/{}/revision/{}?blobs=true", name_.repository, revision));
    HttpPool pool(settings_);
    pool.start(fetch);
    while (!fetch.is_done()) {
      pool.step();
      tell({.note = pool.note()});
    }
    const std::string where = fmt::format("{}: what {} answers", what, settings_.endpoint);
    const nlohmann::json answer = parse_json(fetch.text, where);
    const JsonFields fields(answer, where);
    commit_ = fields.string("sha").value_or("");
    if (!is_hash(commit_, kSha1Digits)) fields.fail("sha", "a commit");
    listing_ = parse_siblings(answer, where);
  }
  const HubFile* index() const {
    return &*std::ranges::find(listing_, std::string_view(kIndex), &HubFile::path);
  }
  void tell(const PullProgress& progress) const {
    if (options_.on_progress) options_.on_progress(progress);
  }

  const Settings settings_;
  const HubName& name_;
  const PullOptions& options_;
  const RepositoryCache cache_;
  std::string commit_;
  Listing listing_;
};

std::string resolve(const std::string& model, const HubName& name, const PullOptions& options) {
  Settings settings = read_settings();
  const RepositoryCache cache(settings.cache, name.repository);
  const bool is_offline = settings.offline || options.offline;
  if (!options.update || is_offline) {
    if (const auto path = find_in_cache(cache, name, is_offline)) return *path;
  }
  if (is_offline) {
    throw_error(ErrorCode::kNotFound,
                "{}: not in the cache {}, or not all of it, and nothing may be pulled "
                "(HF_HUB_OFFLINE); pull it where there is a network",
                model, settings.cache);
  }
  if (!options.update && exists(name.owner())) {
    throw_error(
        ErrorCode::kNotFound,
        "{}: no such folder or file; expected a Hugging Face model folder or a GGUF file, or, "
        "if the model of that name on the hub is meant, run nanovllm pull {} first, as there "
        "is a folder {} here",
        model, model, name.owner());
  }
  try {
    return Pull(settings, name, options).run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable || options.update) throw;
    // No network, but Python's libraries may have pulled it.
    if (const auto path = find_in_cache(cache, name, true)) return *path;
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
