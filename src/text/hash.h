// The hash of a short byte string, inlined into its callers.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nanovllm::text {

// Hash tables are larger than the cache: their slots are fetched so many insertions ahead.
inline constexpr size_t kPrefetchDistance = 16;

inline uint64_t hash_bytes(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace nanovllm::text
