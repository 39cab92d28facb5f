// Numbers for the salts of requests (SamplingParams::cache_salt), which are texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace nanovllm {

// A number is never used for two salts, as one made by hashing might be. Few are remembered: one
// that was forgotten gets a new number, with which nothing is found in the cache.
class CacheSalts {
 public:
  // The highest bit is never set.
  uint64_t number(const std::optional<std::string>& salt) {
    if (!salt) return of_none_;
    const auto found = numbers_.find(*salt);
    if (found != numbers_.end()) return found->second;
    if (num_bytes_ + salt->size() > kMostBytes || numbers_.size() >= kMost) forget_salts();
    numbers_.emplace(*salt, ++last_);
    num_bytes_ += salt->size();
    return last_;
  }

  // From now on all, also those without a salt, have new numbers.
  void forget() {
    forget_salts();
    of_none_ = ++last_;
  }

 private:
  void forget_salts() {
    numbers_.clear();
    num_bytes_ = 0;
  }

  static constexpr size_t kMost = 65'536, kMostBytes = size_t{16} << 20;

  std::map<std::string, uint64_t> numbers_;
  size_t num_bytes_ = 0;  // of the salts that are remembered
  uint64_t last_ = 0;
  uint64_t of_none_ = 0;
};

}  // namespace nanovllm
