#include "hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <list>
#include <thread>

#include "base/check.h"
#include "hub/digest.h"

namespace nanovllm::hub {
namespace {

// Of a file that one request asks for: large beside the time to ask, small beside memory.
constexpr int64_t kPartBytes = int64_t{8} << 20;

// Keeps '/' in paths, as the hub has it.
std::string escaped(std::string_view path) {
  std::string text;
  for (const unsigned char c : path) {
    const bool is_plain =
        std::isalnum(c) != 0 || std::string_view("-_.~/").find(c) != std::string_view::npos;
    text += is_plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return text;
}

// A file on its way. What stands in it is always a beginning of the file, whenever the program
// ends.
class Incoming {
 public:
  Incoming(const RepositoryCache& cache, const HubFile& of_file, FileLock lock)
      : file(of_file), path_(incomplete(cache, of_file)), lock_(std::move(lock)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_write_error(path_, errno);
  }
  ~Incoming() { ::close(fd_); }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  // Reads what an earlier pull left, a piece at each call; false = that was all.
  bool read_on() {
    buffer_.resize(1 << 20);
    const ssize_t count = ::read(fd_, buffer_.data(), buffer_.size());
    if (count <= 0) return false;
    write_digest({buffer_.data(), static_cast<size_t>(count)});
    if (num_written > file.size) begin_anew();
    num_resumed = num_written;
    return num_resumed > 0;
  }
  void write(std::string_view bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, num_written);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_write_error(path_, errno);
      write_digest(bytes.substr(done, static_cast<size_t>(count)));
      done += static_cast<size_t>(count);
    }
  }
  void begin_anew() {
    if (::ftruncate(fd_, 0) != 0) throw_write_error(path_, errno);
    digest_ = Digest(file.hash().size(), file.size);
    num_written = num_resumed = 0;
  }
  // Puts the whole file into its place. False where an earlier pull's part was not the file's: what
  // is there is thrown away, and the file comes anew. Throws Error where nothing was resumed.
  bool finish(const RepositoryCache& cache, const std::string& what) {
    const std::string hash = digest_.hex();
    if (hash != file.hash()) {
      const bool was_resumed = num_resumed > 0;
      begin_anew();
      if (was_resumed) return false;
      ::unlink(path_.c_str());
      throw_error(
          ErrorCode::kCorruptData,
          "{}: came with the hash {} where the hub's list has {}: it was damaged on its way, "
          "or the mirror or proxy is not to be trusted; it was thrown away, pull again",
          what, hash, file.hash());
    }
    if (::rename(path_.c_str(), cache.blob(file.hash()).c_str()) != 0)
      throw_write_error(path_, errno);
    return true;
  }

  const HubFile& file;
  int64_t num_written = 0;
  int64_t num_resumed = 0;  // of them, what an earlier pull left

 private:
  void write_digest(std::string_view bytes) {
    digest_.update(bytes);
    num_written += static_cast<int64_t>(bytes.size());
  }

  std::string path_, buffer_;
  FileLock lock_;
  int fd_;
  Digest digest_{file.hash().size(), file.size};
};

// A part of a file.
class Part final : public Fetch {
 public:
  struct Source {
    std::string what, path, location;
    bool takes_ranges = false;  // its server does
    bool is_whole = false;      // it does not, and the first part is the whole
  };
  Part(Source& source, Incoming& incoming, int64_t begin, int64_t end)
      : Fetch(source.what, source.path, &source.location),
        source_(source),
        incoming_(incoming),
        begin_(begin),
        end_(end) {}

  // What has come and is not written yet.
  std::string bytes;

 private:
  bool is_complete() const override { return begin_ + num_received_ == end_; }
  std::string range() const override {
    return fmt::format("{}-{}", begin_ + num_received_, end_ - 1);
  }
  void begin(const Extent& extent) override {
    const int64_t size = incoming_.file.size;
    if (extent.total >= 0 && extent.total != size) {
      throw_error(
          ErrorCode::kCorruptData,
          "{}: has {} bytes where the hub's list has {}: what answers is no hub or a broken "
          "mirror; check HF_ENDPOINT and proxies, and pull again",
          what(), extent.total, size);
    }
    if (extent.is_part && extent.begin == begin_ + num_received_) {
      source_.takes_ranges = true;
      return;
    }
    if (extent.is_part || source_.takes_ranges) {
      throw_error(
          ErrorCode::kUnavailable,
          "{}: what came is not the part that was asked for; a proxy or mirror between here "
          "and the hub is broken",
          what());
    }
    source_.is_whole = true;
    incoming_.begin_anew();
    bytes.clear();
    begin_ = num_received_ = 0;
    end_ = size;
  }
  void append(std::string_view more) override {
    num_received_ += static_cast<int64_t>(more.size());
    if (begin_ + num_received_ > end_) {
      throw_error(ErrorCode::kCorruptData, "{}: more came than the {} bytes that were asked for",
                  what(), end_ - begin_);
    }
    bytes += more;
  }

  Source& source_;
  Incoming& incoming_;
  int64_t begin_, end_, num_received_ = 0;
};

// One file and the parts of it that are under way, in the file's order.
struct Job {
  Job(const RepositoryCache& cache, const HubFile& file, FileLock lock)
      : incoming(cache, file, std::move(lock)) {}
  Incoming incoming;
  Listing others;  // files of the same content
  Part::Source source;
  std::list<Part> parts;
  int64_t num_planned = 0;  // bytes that are there or are being asked for
};

class Downloader {
 public:
  Downloader(const Settings& settings, const RepositoryCache& cache, std::string commit,
             const PullOptions& options)
      : cache_(cache), commit_(std::move(commit)), options_(options), pool_(settings) {}

  void add(const std::string& repository, const HubFile& file) {
    progress_.total_bytes += file.size;
    if (!jobs_.empty() && jobs_.back().incoming.file.hash() == file.hash()) {
      jobs_.back().others.push_back(file);
      return;
    }
    if (cache_.holds(commit_, file) || cache_.holds_blob(file)) return take(file);
    FileLock lock = wait_for_lock(file);
    if (cache_.holds_blob(file)) return take(file);  // somebody else pulled it meanwhile
    Job& job = jobs_.emplace_back(cache_, file, std::move(lock));
    job.source.what = repository + ": " + file.path;
    job.source.path =
        fmt::format("/{}/resolve/{}/{}", escaped(repository), commit_, escaped(file.path));
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
        const bool is_whole =
            job->parts.empty() && job->incoming.num_written == job->incoming.file.size;
        job = is_whole && finish(*job) ? jobs_.erase(job) : std::next(job);
      }
      report(pool_.note());
    }
  }

 private:
  // What is there gets its name.
  void take(const HubFile& file) {
    if (!cache_.holds(commit_, file)) cache_.link(commit_, file);
    num_there_ += file.size;
  }
  FileLock wait_for_lock(const HubFile& file) {
    while (true) {
      if (auto lock = FileLock::try_take(cache_.lock(file.hash()))) return std::move(*lock);
      report("waiting for another program that pulls the same");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  void check_space() const {
    int64_t missing = 0;
    for (const Job& job : jobs_) missing += job.incoming.file.size - job.incoming.num_written;
    struct statvfs disk = {};
    if (::statvfs(cache_.folder().c_str(), &disk) != 0) return;
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (free >= missing) return;
    throw_error(ErrorCode::kIo,
                "{}: {} bytes are still to come and the disk has {} free; free some, or set "
                "HF_HUB_CACHE to a folder on another disk",
                cache_.root(), missing, free);
  }
  // Asks for parts, as long as there are connections to be had and room to keep what they bring
  // until it is its turn. Of a new source one part only: it may not take ranges.
  void plan() {
    size_t num_parts = 0;
    for (const Job& job : jobs_) num_parts += job.parts.size();
    for (Job& job : jobs_) {
      const int64_t size = job.incoming.file.size;
      while (job.num_planned < size && pool_.num_running() < options_.num_connections &&
             num_parts < 2 * static_cast<size_t>(options_.num_connections)) {
        if (!job.parts.empty() && !job.source.takes_ranges) break;
        const int64_t end = std::min(size, job.num_planned + kPartBytes);
        pool_.start(job.parts.emplace_back(job.source, job.incoming, job.num_planned, end));
        job.num_planned = end;
        ++num_parts;
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
    if (!job.incoming.finish(cache_, job.source.what)) {
      job.num_planned = 0;
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
    if (!options_.on_progress) return;
    options_.on_progress(progress_);
  }

  const RepositoryCache& cache_;
  const std::string commit_;
  const PullOptions& options_;
  std::list<Job> jobs_;
  int64_t num_there_ = 0;   // bytes of files that are whole
  int64_t num_before_ = 0;  // bytes that were there when the first request was sent
  PullProgress progress_;
  HttpPool pool_;  // the last: it lets go of parts before they are gone
};

}  // namespace

std::string incomplete(const RepositoryCache& cache, const HubFile& file) {
  return cache.blob(file.hash()) + ".incomplete";
}

void download(const Settings& settings, const RepositoryCache& cache, const std::string& repository,
              const std::string& commit, const Listing& files, const PullOptions& options) {
  Downloader downloader(settings, cache, commit, options);
  Listing in_order = files;
  // Who takes locks in one order only never waits for who waits for him.
  std::ranges::sort(in_order, {}, &HubFile::hash);
  for (const HubFile& file : in_order) downloader.add(repository, file);
  downloader.run();
}

}  // namespace nanovllm::hub
