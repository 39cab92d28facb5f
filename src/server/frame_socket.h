// Frames (engine/wire.h) over a stream socket.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/wire.h"

namespace nanovllm::server {

class FrameReader {
 public:
  explicit FrameReader(int socket) : socket_(socket) {}

  // Waits for bytes and takes what there is; false when the other side has closed or is gone.
  bool fill();
  // Takes the next frame of those that are here whole; false = none.
  template <typename T>
  bool next(T& value) {
    std::string_view rest = std::string_view(bytes_).substr(begin_);
    const size_t size = rest.size();
    if (!take_frame(rest, value)) return false;
    begin_ += size - rest.size();
    return true;
  }

 private:
  const int socket_;
  std::string bytes_;
  size_t begin_ = 0;  // of what was not taken yet
};

// Sends the front of `bytes`, and waits for room for all of it unless told otherwise. Returns how
// many bytes went; fewer than there are where nobody reads any more, or there is no room.
size_t send_bytes(int socket, std::string_view bytes, bool wait);

}  // namespace nanovllm::server
