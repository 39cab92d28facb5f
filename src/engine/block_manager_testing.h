// Texts and sequences for the tests of the block manager.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/block_manager.h"

namespace nanovllm::block_tests {

inline constexpr int kBlockSize = 4;
inline constexpr int kMaxNumTokens = 1 << 20;

inline std::vector<int32_t> text(int length, int32_t first = 0) {
  std::vector<int32_t> ids(length);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

inline Sequence make_sequence(std::vector<int32_t> ids, uint64_t salt = 0) {
  static uint64_t next_id = 0;
  Sequence sequence(next_id++, 0, std::move(ids), kMaxNumTokens);
  sequence.num_cacheable_tokens = kMaxNumTokens;
  sequence.cache_salt = salt;
  return sequence;
}

// Allocates, and computes and registers the whole text.
inline void compute(BlockManager& blocks, Sequence& sequence) {
  ASSERT_TRUE(blocks.allocate(sequence));
  sequence.num_computed_tokens = sequence.num_tokens();
  blocks.register_computed(sequence, sequence.num_computed_tokens);
}

inline std::string wrong(const BlockManager& blocks, std::vector<const Sequence*> sequences) {
  return blocks.check_integrity(sequences);
}

}  // namespace nanovllm::block_tests
