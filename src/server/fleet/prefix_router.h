// Which of several engines most likely has the beginning of a prompt in its prefix cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nanovllm::server {

class PrefixRouter {
 public:
  // Up to 64 engines.
  explicit PrefixRouter(int block_size) : block_size_(block_size) {}

  // The engine for a prompt, which it is then taken to have cached: of those that were given the
  // longest run of its leading blocks, and else of all, the one with the least load, where that is
  // not far more than others have. `salt`: SamplingParams::cache_salt, empty = none. loads:
  // [num_engines] requests; -1 = takes none. Returns -1 where none takes any.
  int route(std::span<const int32_t> prompt, std::string_view salt, std::span<const int> loads);
  // Its cache is gone.
  void forget(int engine);

 private:
  uint64_t holders_of(uint64_t hash) const;

  const int block_size_;  // tokens
  // Hash of a prompt's beginning -> set of engines, a bit each. The second is what the first was
  // when it was full: what is not used goes with it.
  std::unordered_map<uint64_t, uint64_t> holders_, older_holders_;
};

}  // namespace nanovllm::server
