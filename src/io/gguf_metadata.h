// The keys and values of one GGUF file, read where they lie in it.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

class GgufCursor;

// Thread-safe. Views into the mapped file, which must outlive them; arrays are decoded when asked
// for. A key that is absent reads as nothing; a value of another type or out of range throws
// Error(kCorruptData) naming file and key.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  // Walks over so many keys. Throws Error(kCorruptData) for what is damaged.
  GgufMetadata(GgufCursor& cursor, uint64_t num_keys);

  const std::string& path() const { return path_; }

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::vector<std::string_view> keys() const;  // sorted
  // Any integer type of the file serves as an integer, any float type or integer as a number.
  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> number(std::string_view key, double min, double max) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;  // UTF-8 as a rule only
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<bool>> booleans(std::string_view key) const;
  std::optional<std::vector<float>> floats(std::string_view key) const;  // finite
  // Says of a key that is there what its value should have been.
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  struct Value {
    std::string_view key;
    uint32_t type = 0;  // of an array: its elements'
    bool is_array = false;
    uint64_t count = 1;
    const std::byte* data = nullptr;
  };

  const Value* find(std::string_view key) const;
  // Gives nothing for what does not fit.
  template <typename T>
  using Decode = std::optional<T> (*)(uint32_t type, const std::byte* data);
  template <typename T>
  std::optional<T> scalar(std::string_view key, std::string_view expected, Decode<T> decode) const;
  template <typename T>
  std::optional<std::vector<T>> array(std::string_view key, std::string_view expected,
                                      Decode<T> decode) const;

  std::string path_;
  std::vector<Value> values_;  // by key
};

}  // namespace nanovllm
