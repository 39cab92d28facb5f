// How decode attention divides its work: the tiles of all sequences and KV heads are one line, cut
// into parts whose sizes differ by at most one tile, a part a warp ("stream-K",
// https://arxiv.org/abs/2301.03598), so that ragged contexts load every multiprocessor alike and
// the launch depends on no length.
#pragma once

#include "backend/cuda/attention.cuh"

namespace nanovllm::cuda {

constexpr int kTile = 16;          // tokens; a divisor of every block size
constexpr int kMinBlockTiles = 8;  // fewer are not worth a block of their own

// The tiles that one query token of a sequence needs.
struct TileRange {
  int begin, end;
};
__device__ inline TileRange tiles_of(const AttentionProblem& p, int seq_len) {
  return {p.first_visible(seq_len - 1) / kTile, (seq_len + kTile - 1) / kTile};
}

// One KV head (or, for groups of more heads than a kernel holds, one part of the group) of one
// sequence, as a stretch of the line of tiles.
struct Segment {
  int seq, unit, begin, end;  // seq < 0: none
};

// A stretch of the line in parts of `each` tiles, the first `longer` of them one tile longer.
struct Cut {
  int begin, each, longer;

  __device__ Cut(int first, int size, int parts)
      : begin(first), each(size / parts), longer(size % parts) {}
  __device__ int start(int part) const { return begin + part * each + min(part, longer); }
  __device__ int part_of(int tile) const {
    const int x = tile - begin, split = longer * (each + 1);
    return x < split ? x / (each + 1) : longer + (x - split) / each;
  }
};

// What a block of kWarps computes: parts first_part .. + kWarps - 1 of a cut that starts at
// `first_block`.
template <int kWarps>
struct Share {
  Cut cut;
  int first_part, first_block;

  __device__ int start(int warp) const { return cut.start(first_part + warp); }
  __device__ int begin() const { return start(0); }
  __device__ int end() const { return start(kWarps); }
  __device__ int block_of(int tile) const { return first_block + cut.part_of(tile) / kWarps; }
};

// Whether the batch's segments get blocks of their own, so that short contexts need no merge
// between blocks; more are cut wherever equal shares end.
__host__ __device__ inline bool has_few_segments(int units, int num_seqs, int num_blocks) {
  return 2 * units * num_seqs <= num_blocks;
}

// `sums` are the prefix sums of the sequences' tiles, with room for as many more where there are
// few segments.
template <int kWarps>
__device__ Share<kWarps> share_of_block(int* sums, int num_seqs, int units) {
  const int num_blocks = static_cast<int>(gridDim.x), total = units * sums[num_seqs];
  const int block = static_cast<int>(blockIdx.x);
  const Share<kWarps> nothing = {{total, 0, 1}, 0, 0};
  if (!has_few_segments(units, num_seqs, num_blocks)) {
    const int used = min(num_blocks, max(1, total / kMinBlockTiles));
    if (block >= used) return nothing;
    return {{0, total, used * kWarps}, block * kWarps, 0};
  }
  const int spare = num_blocks - units * num_seqs;
  const int largest = max(kMinBlockTiles, (total + spare - 1) / spare);
  int* blocks = sums + num_seqs + 1;  // of the sequences before
  prefix_sums<kWarps * 32>(blocks, num_seqs,
                           [&](int s) { return (sums[s + 1] - sums[s] + largest - 1) / largest; });
  if (block >= units * blocks[num_seqs]) return nothing;
  const int seq = find_segment(blocks, num_seqs, block / units);
  const int tiles = sums[seq + 1] - sums[seq], each = blocks[seq + 1] - blocks[seq];
  const int unit = (block - units * blocks[seq]) / each;
  const int first = units * blocks[seq] + unit * each;
  return {
      {units * sums[seq] + unit * tiles, tiles, each * kWarps}, (block - first) * kWarps, first};
}

}  // namespace nanovllm::cuda
