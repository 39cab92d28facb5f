#include "server/frame_socket.h"

#include <sys/socket.h>

#include <cerrno>

namespace nanovllm::server {

namespace {

constexpr size_t kReadSize = size_t{1} << 16;  // bytes

}  // namespace

bool FrameReader::fill() {
  bytes_.erase(0, begin_);
  begin_ = 0;
  const size_t size = bytes_.size();
  bytes_.resize(size + kReadSize);
  ssize_t count = 0;
  do {
    count = ::recv(socket_, bytes_.data() + size, kReadSize, 0);
  } while (count < 0 && errno == EINTR);
  bytes_.resize(size + static_cast<size_t>(count < 0 ? 0 : count));
  return count > 0;
}

size_t send_bytes(int socket, std::string_view bytes, bool wait) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(socket, bytes.data() + sent, bytes.size() - sent,
                                 MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    sent += static_cast<size_t>(count);
  }
  return sent;
}

}  // namespace nanovllm::server
