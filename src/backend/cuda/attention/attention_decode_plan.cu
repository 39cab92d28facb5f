#include <utility>

#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/attention/attention_decode_plan.h"
#include "backend/cuda/device/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 512;

// The tiles that one query token of a sequence needs.
struct TileRange {
  int begin, end;
};
__device__ TileRange tiles_of(const DecodeProblem& p, int seq_len) {
  const int first = p.window > 0 ? max(0, seq_len - p.window) : 0;
  return {first / kTile, (seq_len + kTile - 1) / kTile};
}

// `blocks` of the launch take the stretch from `begin` on: the share of the one of this index.
__device__ BlockShare cut(const DecodeProblem& p, int begin, int size, int blocks, int index,
                          int first_block) {
  const int parts = blocks * p.num_warps;
  BlockShare share = {begin, size / parts, size % parts, index * p.num_warps, first_block, 0, 0};
  const auto start = [&](int part) { return begin + part * share.each + min(part, share.longer); };
  share.begin = start(share.first_part);
  share.end = start(share.first_part + p.num_warps);
  return share;
}

// `sums` are the prefix sums of the sequences' tiles, `blocks` of the blocks that each of their
// units gets: of its own where the batch has few segments, so that short contexts need no merge
// between blocks; more are cut wherever equal shares end.
__device__ BlockShare share_of(const DecodeProblem& p, const int* sums, const int* blocks,
                               int block) {
  const int total = p.units * sums[p.num_seqs];
  const BlockShare nothing = {total, 0, 0, 0, 0, total, total};
  if (blocks == nullptr) {
    const int used = min(p.num_blocks, max(1, total / kMinBlockTiles));
    return block < used ? cut(p, 0, total, used, block, 0) : nothing;
  }
  if (block >= p.units * blocks[p.num_seqs]) return nothing;
  const int seq = find_segment(blocks, p.num_seqs, block / p.units);
  const int tiles = sums[seq + 1] - sums[seq], each = blocks[seq + 1] - blocks[seq];
  const int unit = (block - p.units * blocks[seq]) / each;
  const int first = p.units * blocks[seq] + unit * each;
  return cut(p, p.units * sums[seq] + unit * tiles, tiles, each, block - first, first);
}

__device__ WarpWalk walk_of(const DecodeProblem& p, const int* sums, const BlockShare& share,
                            int warp) {
  const int part = share.first_part + warp;
  const int begin = share.cut_begin + part * share.each + min(part, share.longer);
  WarpWalk walk = {};
  walk.index = begin;
  walk.end = begin + share.each + (part < share.longer ? 1 : 0);
  walk.row = -1;
  if (walk.index == walk.end) return walk;
  const int seq = find_segment(sums, p.num_seqs, begin / p.units);
  const int tiles = sums[seq + 1] - sums[seq], first = p.units * sums[seq];
  const int unit = (begin - first) / tiles;
  walk.segment = {seq, unit, first + unit * tiles, first + (unit + 1) * tiles};
  walk.first_seq_len = p.seq_lens[seq];
  const int tile = tiles_of(p, walk.first_seq_len).begin + begin - walk.segment.begin;
  const int tiles_of_block = p.block_size / kTile;
  walk.block_index = tile / tiles_of_block;
  walk.tile_in_block = tile % tiles_of_block;
  const int32_t* row = p.block_table + static_cast<int64_t>(seq) * p.block_table_stride;
  const int kv_head = unit / (p.units / p.num_kv_heads);
  walk.row = (2 * row[walk.block_index] * p.num_kv_heads + kv_head) * p.block_size +
             walk.tile_in_block * kTile;
  walk.next_block = row[min(walk.block_index + 1, p.block_table_stride - 1)];
  return walk;
}

bool has_few_segments(const DecodeProblem& p) { return 2 * p.units * p.num_seqs <= p.num_blocks; }

__global__ void __launch_bounds__(kThreads)
    plan_kernel(DecodeProblem p, DecodePlan plan, bool has_few_segments) {
  extern __shared__ int sums[];  // [num_seqs + 1], and as many again where there are few segments
  prefix_sums<kThreads>(sums, p.num_seqs, [&](int s) {
    const TileRange tiles = tiles_of(p, p.seq_lens[s]);
    return tiles.end - tiles.begin;
  });
  int* blocks = nullptr;
  if (has_few_segments) {
    blocks = sums + p.num_seqs + 1;
    const int spare = p.num_blocks - p.units * p.num_seqs;
    const int largest =
        max(kMinBlockTiles, (p.units * sums[p.num_seqs] + spare - 1) / max(1, spare));
    prefix_sums<kThreads>(blocks, p.num_seqs,
                          [&](int s) { return (sums[s + 1] - sums[s] + largest - 1) / largest; });
  }
  wait_for_predecessor();
  for (int i = threadIdx.x; i < p.num_blocks * p.num_warps; i += kThreads) {
    const int block = i / p.num_warps, warp = i % p.num_warps;
    const BlockShare share = share_of(p, sums, blocks, block);
    if (warp == 0) plan.shares[block] = share;
    plan.warps[i] = walk_of(p, sums, share, warp);
  }
}

constexpr size_t plan_bytes(int num_multiprocessors) {
  return num_multiprocessors * (kMaxDecodeWarps * sizeof(WarpWalk) + sizeof(BlockShare));
}

}  // namespace

DecodePlans::DecodePlans(int num_multiprocessors)
    : num_multiprocessors_(num_multiprocessors),
      memory_(kMaxPlans * plan_bytes(num_multiprocessors)) {}

DecodePlan DecodePlans::plan(size_t slot) const {
  const size_t num_warps = static_cast<size_t>(num_multiprocessors_) * kMaxDecodeWarps;
  auto* const warps = static_cast<WarpWalk*>(memory_.data()) + slot * num_warps;
  auto* const shares =
      reinterpret_cast<BlockShare*>(static_cast<WarpWalk*>(memory_.data()) + kMaxPlans * num_warps);
  return {warps, shares + slot * static_cast<size_t>(num_multiprocessors_)};
}

DecodePlans::Found DecodePlans::find(cudaStream_t stream, const DecodeProblem& problem) {
  const uint64_t generation = generation_.load(std::memory_order_relaxed);
  for (size_t slot = 0; slot < known_.size(); ++slot) {
    const Known& known = known_[slot];
    if (known.generation == generation && known.problem == problem) return {plan(slot), false};
  }
  NANOVLLM_CHECK(problem.num_seqs <= kMaxSeqs && problem.num_warps <= kMaxDecodeWarps &&
                 problem.num_blocks <= num_multiprocessors_);
  const size_t slot = std::exchange(next_, (next_ + 1) % kMaxPlans);
  known_[slot] = {};
  const bool few = has_few_segments(problem);
  const size_t ints = static_cast<size_t>(problem.num_seqs + 1) * (few ? 2 : 1);
  launch(stream, plan_kernel, 1, kThreads, ints * sizeof(int), problem, plan(slot), few);
  known_[slot] = {problem, generation};
  return {plan(slot), true};
}

}  // namespace nanovllm::cuda
