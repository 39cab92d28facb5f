// Writes GGUF files for tests, right ones and, part by part, wrong ones.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/gguf.h"
#include "io/temp_dir_testing.h"
#include "nanovllm/error.h"

namespace nanovllm::testing {

// GgufWriter().add("general.architecture", "qwen3").tensor("a", 0, {2, 3}, data).bytes()
class GgufWriter {
 public:
  // Some of ggml's types.
  static constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ4_K = 12;

  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  // A value of GGUF's type for the C++ type: bool, integers of 8 to 64 bits, float, double, text,
  // or a vector of one of them.
  template <typename T>
  GgufWriter& add(std::string_view key, const T& value) {
    return add_raw(key, type_of<T>(), encoded(value));
  }
  template <typename T>
  GgufWriter& add(std::string_view key, const std::vector<T>& values) {
    std::string bytes = encoded(type_of<T>()) + encoded(uint64_t{values.size()});
    for (const T& value : values) bytes += encoded(value);
    return add_raw(key, kArray, bytes);
  }
  // A value of any type and any bytes.
  GgufWriter& add_raw(std::string_view key, uint32_t type, std::string_view bytes) {
    keys_.append(encoded(key)).append(encoded(type)).append(bytes);
    ++num_keys_;
    return *this;
  }

  // A power of two; before the first tensor.
  GgufWriter& alignment(uint32_t alignment) {
    alignment_ = alignment;
    return add("general.alignment", alignment);
  }

  // `shape`: slowest dimension first. `type`: ggml's id.
  GgufWriter& tensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                     std::string_view bytes) {
    data_.resize(padded(data_.size()));
    tensor_at(name, type, {shape.rbegin(), shape.rend()}, data_.size());
    data_ += bytes;
    return *this;
  }
  // The entry of a tensor without its data. `dimensions`: as in the file, fastest first.
  GgufWriter& tensor_at(std::string_view name, uint32_t type,
                        const std::vector<uint64_t>& dimensions, uint64_t offset) {
    tensors_ += encoded(name) + encoded(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t n : dimensions) tensors_ += encoded(n);
    tensors_ += encoded(type) + encoded(offset);
    ++num_tensors_;
    return *this;
  }
  GgufWriter& data(std::string_view bytes) {
    data_ += bytes;
    return *this;
  }
  // Counts other than those of what was added.
  GgufWriter& counts(uint64_t num_tensors, uint64_t num_keys) {
    num_tensors_ = num_tensors;
    num_keys_ = num_keys;
    return *this;
  }

  // The file, for TempDir::write().
  std::string bytes() const {
    std::string bytes = "GGUF" + encoded(version_) + encoded(num_tensors_) + encoded(num_keys_);
    bytes += keys_ + tensors_;
    if (!data_.empty()) bytes.resize(padded(bytes.size()));
    return bytes + data_;
  }

 private:
  static constexpr uint32_t kArray = 9;

  template <typename T>
  static constexpr uint32_t type_of() {
    if constexpr (std::is_same_v<T, bool>) {
      return 7;
    } else if constexpr (std::is_same_v<T, float>) {
      return 6;
    } else if constexpr (std::is_same_v<T, double>) {
      return 12;
    } else if constexpr (!std::integral<T>) {
      return 8;
    } else if constexpr (sizeof(T) == 8) {
      return std::is_signed_v<T> ? 11 : 10;
    } else {
      return (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 2 : 4) + (std::is_signed_v<T> ? 1 : 0);
    }
  }
  template <typename T>
  static std::string encoded(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return {reinterpret_cast<const char*>(&value), sizeof value};
    } else {
      const std::string_view text = value;
      return encoded(uint64_t{text.size()}).append(text);
    }
  }
  size_t padded(size_t n) const { return (n + alignment_ - 1) / alignment_ * alignment_; }

  uint32_t version_;
  uint32_t alignment_ = 32;
  uint64_t num_keys_ = 0, num_tensors_ = 0;
  std::string keys_, tensors_, data_;
};

inline std::string zeros(size_t n) { return std::string(n, '\0'); }

inline std::string as_text(const GgufTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.bytes};
}

// What an error says, with names in place of paths in the folder.
inline std::string message_in(const TempDir& dir, const Error& error) {
  std::string message = error.what();
  for (size_t at = 0; (at = message.find(dir.path() + "/")) != std::string::npos;) {
    message.erase(at, dir.path().size() + 1);
  }
  return message;
}

}  // namespace nanovllm::testing
