// Frames (engine/wire.h) out of the bytes of a stream socket.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/wire.h"

namespace nanovllm::server {

class FrameBuffer {
 public:
  void add(std::string_view bytes) {
    bytes_.erase(0, begin_);
    begin_ = 0;
    bytes_ += bytes;
  }
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
  std::string bytes_;
  size_t begin_ = 0;  // of what was not taken yet
};

}  // namespace nanovllm::server
