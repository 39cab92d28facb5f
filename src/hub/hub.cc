// resolve_model(): what a name means, whether it is there, and pulling it where it is not: its
// files in parts over several connections, from where an earlier pull ended, checked by size and
// hash.
#include "nanovllm/hub.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <list>
#include <memory>
#include <regex>

#include "base/check.h"
#include "base/message.h"
#include "hub/cache.h"
#include "hub/http.h"
#include "hub/settings.h"

namespace nanovllm {
namespace hub {
namespace {

// Of a file that one request asks for: large beside the time to ask, small beside memory.
constexpr int64_t kPartBytes = int64_t{8} << 20;
// Of a list of files: some ten thousand of them.
constexpr int64_t kMaxPageBytes = int64_t{8} << 20;
constexpr int kMaxPages = 100;  // of a thousand files each, as the hub has them

// A file on its way, and the parts of it that are, in the file's order. What stands in it is always
// a beginning of the file, whenever the program ends, and nobody else writes it.
class Job {
 public:
  // Goes on with what an earlier pull left: in its place where the lock holds, else in a copy.
  Job(const HubFile& of_file, const RepositoryCache& cache, File lock, Source its_source)
      : file(of_file),
        source(std::move(its_source)),
        cache_(cache),
        path_(lock_holds(cache.lock(file)) ? cache.part(file) : cache.own_part(file)),
        lock_(std::move(lock)) {
    const auto left = cache.parts(file);
    const auto largest = std::ranges::max_element(left, {}, size_of);
    if (largest != left.end() && *largest != path_) left_.reset(std::fopen(largest->c_str(), "re"));
    out_.reset(std::fopen(path_.c_str(), left_ ? "w+e" : "a+e"));
    if (!out_) throw_write_error(path_, errno);
    std::setvbuf(out_.get(), nullptr, _IONBF, 0);
    begin_hash();
  }
  ~Job() {
    if (size_of(path_) == 0) static_cast<void>(std::remove(path_.c_str()));
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Reads what an earlier pull left, a piece at each call; false = that was all.
  bool read_on() {
    std::string piece(1 << 20, '\0');
    piece.resize(std::fread(piece.data(), 1, piece.size(), left_ ? left_.get() : out_.get()));
    if (left_) append(piece);
    add(piece);
    if (num_written > file.size) begin_anew();
    num_resumed_ = source.num_planned = num_written;
    if (piece.empty()) remove_idle_parts();
    return !piece.empty();
  }
  // Writes what has come in its order. True = that was all, and the file is in its place.
  bool write() {
    while (!parts.empty()) {
      const std::string bytes = std::exchange(parts.front().bytes, "");
      append(bytes);
      add(bytes);
      if (!parts.front().is_done) return false;
      parts.pop_front();
    }
    return num_written == file.size && finish();
  }

  const HubFile file;
  Source source;
  std::list<Fetch> parts;
  int64_t num_written = 0;  // bytes

 private:
  // By that a hub and its cache know a file: SHA-256 of what Git LFS keeps, git's own SHA-1 of all
  // others.
  void begin_hash() {
    const bool is_git = file.hash.size() == kSha1Digits;
    NANOVLLM_CHECK(EVP_DigestInit_ex(hash_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) ==
                   1);
    // What git hashes begins with the object's kind and size, and a zero.
    if (is_git) add(fmt::format("blob {}{}", file.size, '\0'));
    num_written = num_resumed_ = source.num_planned = 0;
  }
  void add(std::string_view bytes) {
    NANOVLLM_CHECK(EVP_DigestUpdate(hash_.get(), bytes.data(), bytes.size()) == 1);
    num_written += static_cast<int64_t>(bytes.size());
  }
  void append(std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), out_.get()) != bytes.size()) {
      throw_write_error(path_, errno);
    }
  }
  void begin_anew() {
    left_.reset();
    if (::ftruncate(::fileno(out_.get()), 0) != 0) throw_write_error(path_, errno);
    std::rewind(out_.get());
    begin_hash();
  }
  // False where an earlier pull's part was not the file's: that is gone then, and comes anew.
  bool finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
    unsigned int size = 0;
    NANOVLLM_CHECK(EVP_DigestFinal_ex(hash_.get(), bytes.data(), &size) == 1);
    const auto hash = fmt::format("{:02x}", fmt::join(bytes.begin(), bytes.begin() + size, ""));
    if (hash == file.hash) {
      take_place();
      return true;
    }
    const bool was_resumed = num_resumed_ > 0;
    begin_anew();
    if (was_resumed) return false;
    throw_error(
        ErrorCode::kCorruptData,
        "{}: came with the hash {} where the hub's list has {}: it was damaged on its way, or "
        "a mirror or proxy is not to be trusted; it was thrown away, pull again",
        source.what, hash, file.hash);
  }

  // What was copied, and what is less, so that pulls that end early don't pile up their parts.
  void remove_idle_parts() {
    std::error_code error;
    const auto now = std::filesystem::last_write_time(path_, error);
    if (error) return;  // another program has the file, and has removed the parts
    for (const std::string& part : cache_.idle_parts(file, now)) {
      static_cast<void>(std::remove(part.c_str()));
    }
  }
  // Without locks another program may have been faster, and have taken our part away.
  void take_place() {
    const std::string place = cache_.blob(file);
    if (std::rename(path_.c_str(), place.c_str()) != 0 && size_of(place) != file.size) {
      throw_write_error(place, errno);
    }
    for (const std::string& part : cache_.parts(file)) {
      if (part != cache_.part(file)) static_cast<void>(std::remove(part.c_str()));
    }
  }

  const RepositoryCache& cache_;
  const std::string path_;
  const File lock_;
  File left_, out_;          // `left_`: what is copied, null when it was
  int64_t num_resumed_ = 0;  // bytes that an earlier pull left
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> hash_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

class Pull {
 public:
  Pull(const Settings& settings, const RepositoryCache& cache, const HubName& name,
       const PullOptions& options)
      : settings_(settings), cache_(cache), name_(name), options_(options), pool_(settings) {}

  std::string run() {
    const Listing listing = list();
    found_none_ = true;
    Choice choice = cache_.choose(commit_, listing, name_);
    found_none_ = false;
    const auto has_name = [&](const HubFile& file) { return cache_.holds(commit_, file); };
    const bool is_whole = cache_.commit_of(name_.revision) == commit_ && !choice.needs_index &&
                          std::ranges::all_of(choice.files, has_name);
    try {
      cache_.keep_listing(commit_, listing);
    } catch (const Error&) {
      if (!is_whole) throw;  // else the cache may be one that only others write
    }
    if (is_whole) return cache_.snapshot(commit_) + choice.entry;
    if (choice.needs_index) {  // only it says what else is needed; its few bytes are no progress
      files({*std::ranges::find(listing, kIndex, &HubFile::path)});
      choice = cache_.choose(commit_, listing, name_);
    }
    shows_bytes_ = true;
    files(choice.files);
    // The last: until then a branch is what was there whole before.
    cache_.keep_ref(name_.revision, commit_);
    return cache_.snapshot(commit_) + choice.entry;
  }
  // Whether run() failed since no one model of the hub's list is what the name asks for.
  bool found_none() const { return found_none_; }

 private:
  // What the hub says that the revision is.
  Listing list() {
    const std::string what = HubName{name_.repository, name_.revision}.text();
    const std::string where = fmt::format("{}: what {} answers", what, settings_.shown);
    std::string path = fmt::format("/api/models/{}/revision/{}?blobs=true", name_.repository,
                                   escaped(name_.revision));
    Listing listing;
    std::tie(commit_, listing) = parse_listing(page(what, path), where);
    if (tells_sizes(listing)) return listing;
    listing.clear();
    path = fmt::format("/api/models/{}/tree/{}?recursive=true", name_.repository, commit_);
    for (int count = 0; !path.empty(); ++count) {
      if (count == kMaxPages) {
        throw_error(ErrorCode::kCorruptData,
                    "{}: a list of files without an end; is HF_ENDPOINT that of a hub?", where);
      }
      add_tree(listing, page(what + ": the sizes of its files", path), where);
    }
    return listing;
  }
  // Leaves the path of the page behind it, or nothing, in `path`.
  std::string page(const std::string& what, std::string& path) {
    Source source{.what = what, .path = path};
    Fetch page{&source, 0, kMaxPageBytes};
    HttpPool pool(settings_);
    for (pool.start(page); !page.is_done; report(pool.note())) pool.step();
    path = page.next;
    return page.bytes;
  }
  // Those that are not there yet.
  void files(Listing files) {
    make_folder(cache_.folder + "/blobs");
    progress_ = {};
    num_there_ = num_found_ = 0;
    // Who takes locks in one order only never waits for who waits for him.
    std::ranges::sort(files, {}, &HubFile::hash);
    check_space(files);
    for (auto next = files.begin();;) {
      while (next != files.end() && begin(*next)) ++next;
      const bool waits = jobs_.empty() && next != files.end();
      report(waits ? "waiting for another program that pulls the same" : pool_.note());
      if (jobs_.empty() && !waits) return;
      plan();
      pool_.step();
      std::erase_if(jobs_, [&](Job& job) { return job.write() && take(job.file); });
    }
  }
  int most() const { return std::max(1, options_.num_connections); }
  bool is_there(const HubFile& file) const {
    return cache_.holds(commit_, file) || cache_.holds_blob(file);
  }
  // What is there gets its name.
  bool take(const HubFile& file) {
    if (!cache_.holds(commit_, file)) cache_.link(commit_, file);
    num_there_ += file.size;
    return true;
  }
  // False where it has to wait: for other files, or for who else pulls it.
  bool begin(const HubFile& file) {
    File lock;
    if (!is_there(file)) {
      if (jobs_.size() >= static_cast<size_t>(most())) return false;
      lock = take_lock(cache_.lock(file));
      if (!lock) return false;
    }
    if (is_there(file)) {
      num_found_ += file.size;
      return take(file);
    }
    Job& job = jobs_.emplace_back(
        file, cache_, std::move(lock),
        Source{.what = name_.repository + ": " + file.path,
               .path = fmt::format("/{}/resolve/{}/{}", name_.repository, commit_,
                                   std::regex_replace(escaped(file.path), std::regex("%2F"), "/")),
               .size = file.size});
    while (job.read_on()) report("checking what is there");
    num_found_ += job.num_written;
    return true;
  }
  void check_space(const Listing& files) {
    int64_t missing = 0;
    for (const HubFile& file : files) {
      progress_.total_bytes += file.size;
      if (!is_there(file)) missing += cache_.bytes_to_come(file);
    }
    std::error_code error;
    const auto free = static_cast<int64_t>(std::filesystem::space(cache_.folder, error).available);
    if (error || free >= missing) return;
    throw_error(ErrorCode::kIo,
                "{}: {} bytes are still to come and the disk has {} free; free some, or set "
                "HF_HUB_CACHE to a folder on another disk",
                cache_.folder, missing, free);
  }
  // Asks for parts, as long as there are connections to be had and room to keep what they bring
  // until it is its turn. Of a new source one part only: it may not take ranges.
  void plan() {
    int num_parts = 0;
    for (const Job& job : jobs_) num_parts += static_cast<int>(job.parts.size());
    for (Job& job : jobs_) {
      int64_t& planned = job.source.num_planned;
      while (planned < job.file.size && (job.parts.empty() || job.source.takes_ranges) &&
             pool_.num_running() < most() && num_parts++ < 2 * most()) {
        const int64_t begin = std::exchange(planned, std::min(job.file.size, planned + kPartBytes));
        pool_.start(job.parts.emplace_back(Fetch{&job.source, begin, planned}));
      }
    }
  }
  void report(std::string note) {
    progress_.num_bytes = num_there_;
    for (const Job& job : jobs_) {
      progress_.num_bytes += job.num_written;
      for (const Fetch& part : job.parts) {
        progress_.num_bytes += static_cast<int64_t>(part.bytes.size());
      }
    }
    progress_.num_received = std::max<int64_t>(0, progress_.num_bytes - num_found_);
    progress_.note = std::move(note);
    if (options_.on_progress) {
      options_.on_progress(shows_bytes_ ? progress_ : PullProgress{.note = progress_.note});
    }
  }

  const Settings& settings_;
  const RepositoryCache& cache_;
  const HubName& name_;
  const PullOptions& options_;
  std::string commit_;
  std::list<Job> jobs_;
  int64_t num_there_ = 0;  // bytes of files that are whole
  int64_t num_found_ = 0;  // bytes that nobody had to send
  PullProgress progress_;
  bool shows_bytes_ = false;
  bool found_none_ = false;
  HttpPool pool_;  // the last: it lets go of parts before they are gone
};

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string resolve(const std::string& model, const HubName& name, const PullOptions& options) {
  const Settings settings = read_settings();
  const RepositoryCache cache(settings.cache, name.repository);
  const bool is_offline = settings.offline || options.offline;
  if (!options.update || is_offline) {
    const Trust trust = is_offline ? Trust::kWeights : Trust::kSure;
    if (auto path = cache.find(name, trust)) return *path;
  }
  if (is_offline) {
    throw_error(ErrorCode::kNotFound,
                "{}: not in the cache {}, or not all of it, and nothing may be pulled "
                "(HF_HUB_OFFLINE); pull it where there is a network",
                model, settings.cache);
  }
  const std::string owner = name.repository.substr(0, name.repository.find('/'));
  if (!options.update && model.starts_with(owner + "/") && exists(owner)) {
    throw_error(
        ErrorCode::kNotFound,
        "{}: no such folder or file; expected a Hugging Face model folder or a GGUF file, or, "
        "if the model of that name on the hub is meant, run nanovllm pull {} first, as there "
        "is a folder {} here",
        model, model, owner);
  }
  Pull pull(settings, cache, name, options);
  try {
    return pull.run();
  } catch (const Error& error) {
    // No network, a token that ran out, a repository that is gone: what was pulled once is as good.
    const bool is_refusal =
        error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kNotFound;
    const Trust trust = pull.found_none() ? Trust::kSure
                        : options.update  ? Trust::kWhole
                                          : Trust::kWeights;
    const auto path = is_refusal ? cache.find(name, trust) : std::nullopt;
    if (!path) throw;
    const std::string warning = fmt::format("{}; the copy in the cache is used", error.what());
    if (options.on_warning) {
      options.on_warning(warning);
    } else {
      print_message("nanovllm: {}\n", warning);
    }
    return *path;
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
