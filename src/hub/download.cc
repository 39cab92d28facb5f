#include "hub/download.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <memory>
#include <thread>

#include "base/check.h"
#include "hub/digest.h"
#include "hub/http.h"
#include "io/file.h"

namespace nanovllm::hub {
namespace {

// Of a file that one request asks for: large beside the time to ask, small beside memory.
constexpr int64_t kPartBytes = int64_t{8} << 20;

// Keeps '/', as the hub has it.
std::string escaped(std::string_view path) {
  std::string text;
  for (const unsigned char c : path) {
    const bool is_plain =
        std::isalnum(c) != 0 ||
        std::string_view("-_.~/").find(static_cast<char>(c)) != std::string_view::npos;
    text += is_plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return text;
}

// A file on its way. What stands in it is always a beginning of the file, whenever the program
// ends.
class Incoming {
 public:
  Incoming(const HubFile& of_file, std::string place, FileLock lock)
      : file(of_file),
        place_(std::move(place)),
        path_(place_ + ".incomplete"),
        lock_(std::move(lock)),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw_write_error(path_, errno);
  }
  ~Incoming() { ::close(fd_); }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  // Reads what an earlier pull left, a piece at each call; false = that was all.
  bool read_on() {
    std::string piece(1 << 20, '\0');
    const ssize_t count = ::read(fd_, piece.data(), piece.size());
    if (count <= 0) return false;
    add(std::string_view(piece).substr(0, static_cast<size_t>(count)));
    num_resumed_ = num_written;
    if (num_written <= file.size) return true;
    begin_anew();
    return false;
  }
  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), num_written);
      if (count < 0) throw_write_error(path_, errno);
      add(bytes.substr(0, static_cast<size_t>(count)));
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }
  void begin_anew() {
    if (::ftruncate(fd_, 0) != 0) throw_write_error(path_, errno);
    digest_ = Digest(file.hash.size(), file.size);
    num_written = num_resumed_ = 0;
  }
  // Puts the whole file into its place. False where an earlier pull's part was not the file's: that
  // is gone then, and the file must come anew.
  bool finish() {
    const std::string hash = digest_.hex();
    if (hash == file.hash) {
      if (::rename(path_.c_str(), place_.c_str()) != 0) throw_write_error(place_, errno);
      return true;
    }
    const bool was_resumed = num_resumed_ > 0;
    begin_anew();
    if (was_resumed) return false;
    throw_error(
        ErrorCode::kCorruptData,
        "{}: came with the hash {} where the hub's list has {}: it was damaged on its way, or "
        "a mirror or proxy is not to be trusted; it was thrown away, pull again",
        what, hash, file.hash);
  }

  const HubFile& file;
  std::string what;         // begins messages
  int64_t num_written = 0;  // bytes

 private:
  void add(std::string_view bytes) {
    digest_.update(bytes);
    num_written += static_cast<int64_t>(bytes.size());
  }

  const std::string place_, path_;
  const FileLock lock_;
  const int fd_;
  int64_t num_resumed_ = 0;  // bytes that an earlier pull left
  Digest digest_{file.hash.size(), file.size};
};

// Where a file comes from.
struct Source {
  std::string path, location;  // at the hub, and where that sent us to
  bool takes_ranges = false;   // its server does
  bool is_whole = false;       // it does not, and the first part is the whole file
};

class Part final : public Fetch {
 public:
  Part(Source& source, Incoming& incoming, int64_t begin, int64_t end)
      : Fetch(incoming.what, source.path, &source.location),
        source_(source),
        incoming_(incoming),
        begin_(begin),
        end_(end) {}

  std::string bytes;  // that came and are not written yet

 private:
  bool is_complete() const override { return begin_ == end_; }
  std::string range() const override { return fmt::format("{}-{}", begin_, end_ - 1); }
  void begin(const Extent& extent) override {
    const int64_t size = incoming_.file.size;
    if (extent.total >= 0 && extent.total != size) {
      throw_error(
          ErrorCode::kCorruptData,
          "{}: has {} bytes where the hub's list has {}: what answers is no hub or a broken "
          "mirror; check HF_ENDPOINT and proxies, and pull again",
          what(), extent.total, size);
    }
    if (extent.is_part ? extent.begin != begin_ : source_.takes_ranges) {
      throw_error(
          ErrorCode::kUnavailable,
          "{}: what came is not the part that was asked for: a proxy or mirror between here "
          "and the hub is broken; go around it, and pull again",
          what());
    }
    source_.takes_ranges = extent.is_part;
    if (extent.is_part) return;
    source_.is_whole = true;
    incoming_.begin_anew();
    bytes.clear();
    begin_ = 0;
    end_ = size;
  }
  void append(std::string_view more) override {
    begin_ += static_cast<int64_t>(more.size());
    if (begin_ > end_)
      throw_error(ErrorCode::kCorruptData, "{}: more came than was asked for; pull again", what());
    bytes += more;
  }

  Source& source_;
  Incoming& incoming_;
  int64_t begin_, end_;  // what is still to come
};

// One file, and the parts of it that are under way, in the file's order.
struct Job {
  Job(const HubFile& file, std::string place, FileLock lock)
      : incoming(file, std::move(place), std::move(lock)) {}

  Incoming incoming;
  Source source;
  int64_t num_planned = 0;  // bytes that are there or are being asked for
  Listing others;           // files of the same content
  std::list<Part> parts;
};

class Downloader {
 public:
  Downloader(const Settings& settings, const RepositoryCache& cache, const std::string& commit,
             const PullOptions& options)
      : cache_(cache), commit_(commit), options_(options), pool_(settings) {}

  void add(const std::string& repository, const HubFile& file) {
    progress_.total_bytes += file.size;
    if (!jobs_.empty() && jobs_.back().incoming.file.hash == file.hash)
      return jobs_.back().others.push_back(file);
    std::optional<FileLock> lock;
    while (!is_there(file) && !(lock = FileLock::try_take(cache_.lock(file)))) {
      report("waiting for another program that pulls the same");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (is_there(file)) return take(file);
    Job& job = jobs_.emplace_back(file, cache_.blob(file), std::move(*lock));
    job.source.path = fmt::format("/{}/resolve/{}/{}", repository, commit_, escaped(file.path));
    job.incoming.what = repository + ": " + file.path;
    while (job.incoming.read_on()) report("checking what is there");
    job.num_planned = job.incoming.num_written;
  }

  void run() {
    check_space();
    report("");
    num_before_ = progress_.num_bytes;
    while (!jobs_.empty()) {
      plan();
      pool_.step();
      for (auto job = jobs_.begin(); job != jobs_.end();) {
        write(*job);
        job = finish(*job) ? jobs_.erase(job) : std::next(job);
      }
      report(pool_.note());
    }
  }

 private:
  bool is_there(const HubFile& file) const {
    return cache_.holds(commit_, file) || cache_.holds_blob(file);
  }
  // What is there gets its name.
  void take(const HubFile& file) {
    if (!cache_.holds(commit_, file)) cache_.link(commit_, file);
    num_there_ += file.size;
  }
  void check_space() const {
    int64_t missing = 0;
    for (const Job& job : jobs_) missing += job.incoming.file.size - job.incoming.num_written;
    struct statvfs disk = {};
    if (::statvfs(cache_.folder.c_str(), &disk) != 0) return;
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free >= missing) return;
    throw_error(ErrorCode::kIo,
                "{}: {} bytes are still to come and the disk has {} free; free some, or set "
                "HF_HUB_CACHE to a folder on another disk",
                cache_.folder, missing, free);
  }
  // Asks for parts, as long as there are connections to be had and room to keep what they bring
  // until it is its turn. Of a new source one part only: it may not take ranges.
  void plan() {
    const int most = std::max(1, options_.num_connections);
    int num_parts = 0;
    for (const Job& job : jobs_) num_parts += static_cast<int>(job.parts.size());
    for (Job& job : jobs_) {
      while (job.num_planned < job.incoming.file.size &&
             (job.parts.empty() || job.source.takes_ranges) && pool_.num_running() < most &&
             num_parts++ < 2 * most) {
        const int64_t end = std::min(job.incoming.file.size, job.num_planned + kPartBytes);
        pool_.start(job.parts.emplace_back(job.source, job.incoming, job.num_planned, end));
        job.num_planned = end;
      }
    }
  }
  void write(Job& job) {
    if (job.source.is_whole) job.num_planned = job.incoming.file.size;
    while (!job.parts.empty()) {
      Part& part = job.parts.front();
      job.incoming.write(part.bytes);
      part.bytes.clear();
      if (!part.is_done()) return;
      job.parts.pop_front();
    }
  }
  bool finish(Job& job) {
    if (!job.parts.empty() || job.incoming.num_written < job.incoming.file.size) return false;
    if (!job.incoming.finish()) {
      job.num_planned = 0;
      job.source.is_whole = false;
      return false;
    }
    take(job.incoming.file);
    for (const HubFile& other : job.others) take(other);
    return true;
  }
  void report(std::string note) {
    progress_.num_bytes = num_there_;
    for (const Job& job : jobs_) {
      progress_.num_bytes += job.incoming.num_written;
      for (const Part& part : job.parts)
        progress_.num_bytes += static_cast<int64_t>(part.bytes.size());
    }
    progress_.num_received = std::max<int64_t>(0, progress_.num_bytes - num_before_);
    progress_.note = std::move(note);
    if (options_.on_progress) options_.on_progress(progress_);
  }

  const RepositoryCache& cache_;
  const std::string& commit_;
  const PullOptions& options_;
  std::list<Job> jobs_;
  int64_t num_there_ = 0;   // bytes of files that are whole
  int64_t num_before_ = 0;  // bytes that were there when the first request was sent
  PullProgress progress_;
  HttpPool pool_;  // the last: it lets go of parts before they are gone
};

class Text final : public Fetch {
 public:
  using Fetch::Fetch;
  std::string text;

 private:
  void begin(const Extent&) override { text.clear(); }
  void append(std::string_view bytes) override {
    if (text.size() + bytes.size() > static_cast<size_t>(kMaxTextBytes))
      throw_error(ErrorCode::kCorruptData, "{}: the hub's answer has no end", what());
    text += bytes;
  }
  bool is_complete() const override { return true; }
};

}  // namespace

std::string download_text(const Settings& settings, const std::string& what,
                          const std::string& path, const PullOptions& options) {
  std::string location;
  Text text(what, path, &location);
  HttpPool pool(settings);
  pool.start(text);
  while (!text.is_done()) {
    pool.step();
    if (options.on_progress) options.on_progress({.note = pool.note()});
  }
  return text.text;
}

void download(const Settings& settings, const RepositoryCache& cache, const std::string& repository,
              const std::string& commit, Listing files, const PullOptions& options) {
  make_folder(cache.folder + "/blobs");
  Downloader downloader(settings, cache, commit, options);
  // Who takes locks in one order only never waits for who waits for him.
  std::ranges::sort(files, {}, &HubFile::hash);
  for (const HubFile& file : files) downloader.add(repository, file);
  downloader.run();
}

}  // namespace nanovllm::hub
