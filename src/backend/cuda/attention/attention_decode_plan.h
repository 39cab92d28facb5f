// How decode attention divides its work: the tiles of all sequences and KV heads are one line, cut
// into parts whose sizes differ by at most one tile, a part a warp ("stream-K",
// https://arxiv.org/abs/2301.03598), so that ragged contexts load every multiprocessor alike and
// the launch depends on no length. All layers of a step divide alike: a kernel of its own writes
// the plan once, and a warp finds in it where to begin.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "backend/cuda/device/memory.h"

namespace nanovllm::cuda {

constexpr int kTile = 16;           // tokens; a divisor of every block size
constexpr int kMinBlockTiles = 8;   // fewer are not worth a block of their own
constexpr int kMaxDecodeWarps = 8;  // of a block

// What a plan depends on. A KV head whose query heads are more than a warp takes is several units
// of work.
struct DecodeProblem {
  const int32_t* seq_lens = nullptr;
  const int32_t* block_table = nullptr;
  int block_table_stride = 0;
  int num_seqs = 0;
  int window = 0;
  int num_kv_heads = 0;
  int units = 0;  // of a sequence, a multiple of num_kv_heads
  int block_size = 0;
  int num_blocks = 0;  // of the launch
  int num_warps = 0;   // of a block

  bool operator==(const DecodeProblem&) const = default;
};

// A unit of work of a sequence, as a stretch of the line of tiles. seq < 0: none.
struct Segment {
  int seq, unit, begin, end;
};

// A warp's way over its tiles.
struct alignas(16) WarpWalk {
  int index, end;  // on the line: the tile it is at, and its part's end
  int row;         // of the tile's first key among the rows of the cache; < 0 at the end
  int tile_in_block;
  Segment segment;
  int block_index, next_block;  // the next block's number is loaded a block ahead
  int first_seq_len;            // of the sequence that the walk begins with
};

// A block's parts are neighbours: first_part .. of a cut that starts at the launch's block
// `first_block`. The cut's first `longer` parts have each + 1 tiles, the others `each`.
struct BlockShare {
  int cut_begin, each, longer;
  int first_part, first_block;
  int begin, end;  // of the block, on the line
};

struct DecodePlan {
  WarpWalk* warps;     // [num_blocks, num_warps]
  BlockShare* shares;  // [num_blocks]
};

// The plans of a stream's batch, of which layers want several: one for each block table, and one
// for each window.
class DecodePlans {
 public:
  explicit DecodePlans(int num_multiprocessors);

  // After anything was written that a problem points to, and where a graph begins or ends. Any
  // thread may.
  void forget() { generation_.fetch_add(1, std::memory_order_relaxed); }

  // Of the batch, until something is forgotten.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  struct Found {
    DecodePlan plan;
    bool is_new;  // its kernel is what runs before the caller's
  };
  // Launches the kernel that writes the plan unless it is there.
  Found find(cudaStream_t stream, const DecodeProblem& problem);

  // Sequences that a plan takes.
  static constexpr int kMaxSeqs = 16384;

 private:
  DecodePlan plan(size_t slot) const;

  const int num_multiprocessors_;
  DeviceBuffer memory_;
  struct Known {
    DecodeProblem problem;
    uint64_t generation = 0;  // of forget()
  };
  // As many groups of layers as models have (kMostCacheGroups); of more, a plan is made again.
  static constexpr size_t kMaxPlans = 8;
  std::array<Known, kMaxPlans> known_;
  std::atomic<uint64_t> generation_ = 1;
  size_t next_ = 0;
};

}  // namespace nanovllm::cuda
