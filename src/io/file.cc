#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/byte_order_mark.h"
#include "base/check.h"
#include "base/process_limits.h"
#include "io/json.h"

namespace nanovllm {
namespace {

// The path as messages show it, with what it leads to where it is a link.
std::string shown_path(const std::string& path) {
  std::error_code is_no_link;
  const std::string target = std::filesystem::read_symlink(path, is_no_link);
  return target.empty() ? path : fmt::format("{}, a link to {}", path, printable(target, 300));
}

[[noreturn]] void throw_io_error(const std::string& path, int error) {
  const std::string name = shown_path(path);
  if (error == ENOENT || error == ENOTDIR) {
    throw_error(ErrorCode::kNotFound, "{}: no such file", name);
  }
  if (error == EACCES || error == EPERM) {
    throw_error(ErrorCode::kIo, "{}: no permission to read it", name);
  }
  throw_error(ErrorCode::kIo, "{}: can't be read: {}{}", name,
              std::generic_category().message(error), error == ENOMEM ? memory_limits() : "");
}

// A regular file opened for reading.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) {
    // O_NONBLOCK: opening a pipe that has no writer must not wait for one.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) throw_io_error(path, errno);
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) {
      const int error = errno;
      ::close(fd_);
      throw_io_error(path, error);
    }
    if (!S_ISREG(status.st_mode)) {
      ::close(fd_);
      throw_error(ErrorCode::kIo, "{}: not a regular file", shown_path(path));
    }
    size_ = static_cast<size_t>(status.st_size);
  }
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int fd() const { return fd_; }
  size_t size() const { return size_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
  size_t size_ = 0;
};

// What git leaves of a large file where Git LFS is not installed.
void refuse_lfs_pointer(const OpenFile& file, const std::string& path) {
  constexpr std::string_view kBegin = "version https://git-lfs";
  constexpr size_t kMaxBytes = 1024;
  char begin[kBegin.size()] = {};
  if (file.size() > kMaxBytes || ::pread(file.fd(), begin, sizeof begin, 0) < 0) return;
  if (std::string_view(begin, sizeof begin) != kBegin) return;
  throw_error(ErrorCode::kCorruptData,
              "{}: a pointer of Git LFS and not the file itself; run git lfs pull in its folder",
              path);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  OpenFile file(path_);
  refuse_lfs_pointer(file, path_);
  size_ = file.size();
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (memory == MAP_FAILED) throw_io_error(path_, errno);
  data_ = static_cast<const std::byte*>(memory);
  fd_ = file.release();
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::check_size() const {
  if (fd_ < 0) return;
  struct stat status = {};
  if (::fstat(fd_, &status) != 0) throw_io_error(path_, errno);
  if (status.st_size >= static_cast<off_t>(size_)) return;
  throw_error(ErrorCode::kCorruptData,
              "{}: cut short while it was being read: {} of {} bytes are left; write a model's "
              "files elsewhere and move them into place",
              path_, status.st_size, size_);
}

void MappedFile::prefetch() const {
  // Advice: that it fails changes nothing but the speed.
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_WILLNEED);
}

void MappedFile::release(const void* data, size_t bytes) const {
  // Whole pages only: what lies beside them may be in use.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
  if (bytes < before + page) return;
  auto* begin = static_cast<char*>(const_cast<void*>(data)) + before;
  ::madvise(begin, (bytes - before) / page * page, MADV_DONTNEED);
}

std::string read_text_file(const std::string& path, int64_t max_bytes) {
  const OpenFile file(path);
  refuse_lfs_pointer(file, path);
  if (file.size() > static_cast<size_t>(max_bytes)) {
    throw_error(ErrorCode::kCorruptData, "{}: {} bytes long, expected at most {}", path,
                file.size(), max_bytes);
  }
  std::string text(file.size(), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(file.fd(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io_error(path, errno);
    if (n == 0) break;  // somebody shortened it meanwhile
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  text.erase(0, text.size() - without_byte_order_mark(text).size());
  return text;
}

bool file_exists(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    throw_io_error(path, errno);
  }
  if (S_ISLNK(status.st_mode) && ::stat(path.c_str(), &status) != 0) throw_io_error(path, errno);
  return true;
}

void check_is_folder(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == EACCES) {
      throw_error(ErrorCode::kIo, "{}: no permission to look into this folder", path);
    }
    throw_error(ErrorCode::kNotFound,
                "{}: no such folder or file; expected a Hugging Face model folder or a GGUF file{}",
                shown_path(path),
                path.find('/') == path.npos
                    ? ", or OWNER/MODEL for one of the hub, such as Qwen/Qwen3-0.6B"
                    : "");
  }
  if (!S_ISDIR(status.st_mode)) {
    throw_error(ErrorCode::kNotFound,
                "{}: not a folder; expected the Hugging Face model folder that holds config.json",
                path);
  }
}

}  // namespace nanovllm
