#include "cli/input_lines.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/byte_order_mark.h"
#include "base/check.h"

namespace nanovllm::cli {
namespace {

constexpr size_t kReadBytes = 1 << 16;
constexpr int kPatience = 200;  // milliseconds

}  // namespace

InputLines::InputLines(std::string path) : path_(std::move(path)) {
  file_ = path_ == "-" ? STDIN_FILENO : ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail();
  struct stat status = {};
  if (::fstat(file_, &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail();
  }
}

InputLines::~InputLines() {
  if (file_ != STDIN_FILENO) ::close(file_);
}

InputLines::Next InputLines::next(std::string& line, bool wait) {
  while (true) {
    const size_t newline = buffer_.find('\n', searched_);
    if (newline != std::string::npos) {
      line.assign(buffer_, begin_, newline - begin_);
      begin_ = searched_ = newline + 1;
      return whole(line);
    }
    searched_ = buffer_.size();
    if (drop_what_is_too_long()) return Next::kNotYet;  // there may be no end of it
    if (at_end_) {                                      // the last line may lack its newline
      line.assign(buffer_, begin_);
      begin_ = searched_;
      return line.empty() && !too_long_ ? Next::kEnd : whole(line);
    }
    if (!is_readable(wait)) return Next::kNotYet;
    fill();
  }
}

std::optional<int64_t> InputLines::count() const {
  struct stat status = {};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string buffer(kReadBytes, '\0');
  int64_t num_lines = 0;
  bool in_line = false;  // else before the first character of one that counts
  off_t at = ::lseek(file_, 0, SEEK_CUR);
  ssize_t size = 0;
  while ((size = ::pread(file_, buffer.data(), buffer.size(), at)) > 0) {
    const std::string_view block(buffer.data(), static_cast<size_t>(size));
    size_t i = at == 0 ? block.size() - without_byte_order_mark(block).size() : 0;
    while ((i = in_line ? block.find('\n', i) : block.find_first_not_of(kBlanks, i)) !=
           block.npos) {
      num_lines += in_line ? 0 : 1;
      in_line = !in_line;
    }
    at += size;
  }
  return size < 0 ? std::nullopt : std::optional(num_lines);
}

InputLines::Next InputLines::whole(std::string& line) {
  if (std::exchange(is_first_, false)) {
    line.erase(0, line.size() - without_byte_order_mark(line).size());
  }
  const bool dropped = std::exchange(too_long_, false);
  return dropped || line.size() > kMaxLineBytes ? Next::kTooLong : Next::kLine;
}

bool InputLines::drop_what_is_too_long() {
  if (buffer_.size() - begin_ <= kMaxLineBytes) return false;
  too_long_ = true;
  buffer_.clear();
  begin_ = searched_ = 0;
  return true;
}

bool InputLines::is_readable(bool wait) const {
  pollfd request = {.fd = file_, .events = POLLIN, .revents = 0};
  const int count = ::poll(&request, 1, wait ? kPatience : 0);
  if (count < 0 && errno != EINTR) fail();
  return count > 0;
}

void InputLines::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  searched_ = buffer_.size();
  buffer_.resize(searched_ + kReadBytes);
  const ssize_t count = ::read(file_, buffer_.data() + searched_, kReadBytes);
  const int error = errno;
  buffer_.resize(searched_ + static_cast<size_t>(count < 0 ? 0 : count));
  at_end_ = count == 0;
  if (count < 0 && error != EINTR && error != EAGAIN) {
    errno = error;
    fail();
  }
}

void InputLines::fail() const {
  throw_error(ErrorCode::kIo, "cannot read requests from {}: {}",
              path_ == "-" ? "standard input" : path_, std::strerror(errno));
}

}  // namespace nanovllm::cli
