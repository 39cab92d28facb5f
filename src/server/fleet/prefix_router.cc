#include "server/fleet/prefix_router.h"

#include <algorithm>
#include <utility>

#include "text/hash.h"

namespace nanovllm::server {

namespace {

constexpr size_t kMaxNumHashes = size_t{1} << 16;  // in each map
constexpr size_t kMaxNumBlocks = 512;              // of a prompt

// A cached beginning saves one prompt's computation; beyond this it would be paid with waiting.
bool is_far_above(int load, int least) { return load > 2 * least + 8; }

int least_loaded(std::span<const int> loads, uint64_t among) {
  int best = -1;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i] < 0 || (among >> i & 1) == 0) continue;
    if (best < 0 || loads[i] < loads[static_cast<size_t>(best)]) best = static_cast<int>(i);
  }
  return best;
}

// [blocks] of the prompt's beginnings that end with whole blocks.
std::vector<uint64_t> hashes_of(std::span<const int32_t> prompt, std::string_view salt,
                                int block_size) {
  const auto size = static_cast<size_t>(block_size);
  std::vector<uint64_t> hashes(std::min(prompt.size() / size, kMaxNumBlocks));
  uint64_t hash = salt.empty() ? 0 : XXH3_64bits(salt.data(), salt.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto block = std::as_bytes(prompt.subspan(i * size, size));
    hash = XXH3_64bits_withSeed(block.data(), block.size(), hash);
    hashes[i] = hash;
  }
  return hashes;
}

}  // namespace

int PrefixRouter::route(std::span<const int32_t> prompt, std::string_view salt,
                        std::span<const int> loads) {
  if (loads.size() == 1) return loads[0] < 0 ? -1 : 0;
  const int least = least_loaded(loads, ~uint64_t{0});
  if (least < 0) return -1;
  const std::vector<uint64_t> hashes = hashes_of(prompt, salt, block_size_);
  int chosen = -1;
  for (size_t i = hashes.size(); i > 0 && chosen < 0; --i) {
    chosen = least_loaded(loads, holders_of(hashes[i - 1]));
  }
  const auto load = [&](int engine) { return loads[static_cast<size_t>(engine)]; };
  if (chosen < 0 || is_far_above(load(chosen), load(least))) chosen = least;
  for (const uint64_t hash : hashes) {
    if (holders_.size() >= kMaxNumHashes) older_holders_ = std::exchange(holders_, {});
    const uint64_t before = holders_of(hash);
    holders_[hash] = before | uint64_t{1} << chosen;
  }
  return chosen;
}

uint64_t PrefixRouter::holders_of(uint64_t hash) const {
  for (const auto* map : {&holders_, &older_holders_}) {
    const auto found = map->find(hash);
    if (found != map->end()) return found->second;
  }
  return 0;
}

void PrefixRouter::forget(int engine) {
  for (auto* map : {&holders_, &older_holders_}) {
    for (auto& [hash, holders] : *map) holders &= ~(uint64_t{1} << engine);
  }
}

}  // namespace nanovllm::server
