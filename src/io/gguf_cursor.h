// Walks the header of a GGUF file, and never beyond its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm {

class GgufCursor {
 public:
  explicit GgufCursor(const MappedFile& file) : path_(file.path()), file_(file.bytes()) {}

  const std::string& path() const { return path_; }
  size_t position() const { return position_; }
  const std::byte* here() const { return file_.data() + position_; }
  // What is read from now on, for messages: "key general.name".
  void enter(std::string_view kind, std::string_view name = {}) {
    kind_ = kind;
    name_ = name;
  }

  // Steps over `count` things of `bytes` bytes each and returns where they begin.
  const std::byte* take(uint64_t count, uint64_t bytes) {
    if (count > (file_.size() - position_) / bytes) fail_at_end();
    const std::byte* begin = here();
    position_ += count * bytes;
    return begin;
  }
  template <typename T>
  T read() {
    T value;
    std::memcpy(&value, take(1, sizeof value), sizeof value);
    return value;
  }
  std::string_view read_string() {
    const auto length = read<uint64_t>();
    return {reinterpret_cast<const char*>(take(length, 1)), length};
  }

  // One sentence about what is being read.
  [[noreturn]] void fail(ErrorCode code, std::string_view what, std::string_view remedy) const {
    throw_error(code, "{}: {}{}{} {}; {}", path_, kind_, name_.empty() ? "" : " ", printable(name_),
                what, remedy);
  }
  [[noreturn]] void fail_damaged(std::string_view what) const {
    fail(ErrorCode::kCorruptData, what, "download the file again");
  }

 private:
  [[noreturn]] void fail_at_end() const {
    fail_damaged(fmt::format("would end beyond the file, which is damaged or truncated at {} bytes",
                             file_.size()));
  }

  std::string path_;
  std::span<const std::byte> file_;
  size_t position_ = 0;
  std::string_view kind_, name_;
};

}  // namespace nanovllm
