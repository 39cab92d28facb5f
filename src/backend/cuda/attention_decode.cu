// Paged attention for one query token a sequence, over the K and V of its whole context: bound by
// memory, it must move 2 * num_kv_heads * head_dim elements a context token and nothing else to
// speak of.
//
// The work of all sequences and KV heads is one line of tiles of 16 tokens, cut into equal shares
// for the warps of a fixed number of blocks ("stream-K", https://arxiv.org/abs/2301.03598), so that
// ragged contexts load every multiprocessor alike and the launch depends on no length. What a warp
// does to a tile is in attention_decode_warp.cuh: the heads of a group share it. Pieces of a
// sequence and head that lie in several warps are merged in shared memory, those that lie in
// several blocks by the last of these blocks to arrive (https://pytorch.org/blog/flash-decoding).
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_decode_warp.cuh"
#include "backend/cuda/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kMinBlockTiles = 8;  // fewer are not worth a block of their own
constexpr int kMaxBlocksPerSm = 3;

// The tiles that one query token of a sequence needs.
struct TileRange {
  int begin, end;
};
__device__ TileRange tiles_of(const AttentionProblem& p, int seq_len) {
  return {p.first_visible(seq_len - 1) / kTile, (seq_len + kTile - 1) / kTile};
}

// One KV head (or, for groups of more heads than a kernel holds, one part of the group) of one
// sequence, as a stretch of the line of tiles.
struct Segment {
  int seq, unit, begin, end;  // seq < 0: none
};

// What a block computes: tiles begin .. end - 1 of the line.
struct Share {
  int begin, end;
  int per_block;                // tiles of every block, or 0 where ...
  int first_block, last_block;  // ... the block serves one segment, together with these

  __device__ int first_block_of(const Segment& s) const {
    return per_block > 0 ? s.begin / per_block : first_block;
  }
  __device__ int last_block_of(const Segment& s) const {
    return per_block > 0 ? (s.end - 1) / per_block : last_block;
  }
};

// `sums` are the prefix sums of the sequences' tiles. Few segments get blocks of their own, so that
// short contexts need no merge between blocks; many are cut wherever equal shares end.
__device__ Share share_of_block(const int* sums, int num_seqs, int units) {
  const int num_blocks = static_cast<int>(gridDim.x), total = units * sums[num_seqs];
  int block = static_cast<int>(blockIdx.x);
  if (2 * units * num_seqs > num_blocks) {
    const int each = max(kMinBlockTiles, (total + num_blocks - 1) / num_blocks);
    return {min(total, block * each), min(total, (block + 1) * each), each, 0, 0};
  }
  const int spare = num_blocks - units * num_seqs;
  const int largest = max(kMinBlockTiles, (total + spare - 1) / spare);
  for (int s = 0; s < num_seqs; ++s) {
    const int tiles = sums[s + 1] - sums[s];
    const int blocks = (tiles + largest - 1) / largest;
    if (block < units * blocks) {
      const int unit = block / blocks, i = block % blocks;
      const int each = (tiles + blocks - 1) / blocks, begin = units * sums[s] + unit * tiles;
      const int first = static_cast<int>(blockIdx.x) - i;
      return {begin + min(tiles, i * each), begin + min(tiles, (i + 1) * each), 0, first,
              first + blocks - 1};
    }
    block -= units * blocks;
  }
  return {0, 0, 1, 0, 0};
}

// An unfinished result in shared or device memory: of each head the sum of the weighted values, the
// largest score and the total of the weights.
template <int kDim>
struct Partial {
  // A multiple of 4, to keep 16-byte accesses aligned.
  static constexpr __host__ __device__ int floats(int num_heads) {
    return num_heads * kDim + (2 * num_heads + 3) / 4 * 4;
  }
  float* data;
  int num_heads;
  __device__ float* values(int head) const { return data + head * kDim; }
  __device__ float* largest(int head) const { return data + num_heads * kDim + head; }
  __device__ float* total(int head) const { return data + num_heads * (kDim + 1) + head; }
};

// kStores: qk_norm_rope_store's work is done on the way.
template <int kDim, int kHeadTiles, bool kStores>
struct DecodeKernel {
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kBlocksPerSm = kDim * kHeadTiles <= 128 ? kMaxBlocksPerSm : 2;

  static constexpr __host__ __device__ int part_floats(int num_heads) {
    return Partial<kDim>::floats(num_heads);
  }

  __nv_bfloat16* out;
  const __nv_bfloat16* qkv;
  __nv_bfloat16* cache;  // written where kStores
  AttentionProblem p;
  AttentionWorkspace workspace;
  Rope rope;             // where kStores
  const int32_t* slots;  // [num_seqs], likewise

  // Parts of a group that are computed apart, and the query heads of each but the last.
  __host__ __device__ int parts() const { return (p.group + kHeads - 1) / kHeads; }
  __host__ __device__ int part_heads() const { return p.group < kHeads ? p.group : kHeads; }
  __host__ __device__ int units() const { return p.kv.num_kv_heads * parts(); }
  __device__ int first_head(int unit) const {
    return unit / parts() * p.group + unit % parts() * kHeads;
  }
  __device__ int num_heads(int unit) const {
    return min(kHeads, p.group - unit % parts() * kHeads);
  }
  __device__ __nv_bfloat16* out_row(const Segment& s, int head) const {
    return out +
           (static_cast<int64_t>(s.seq) * p.params.num_heads + first_head(s.unit) + head) * kDim;
  }
  __device__ Partial<kDim> block_partial(int block, int slot) const {
    return {workspace.partials + (2 * block + slot) * part_floats(part_heads()), part_heads()};
  }
  __device__ Segment segment_at(const int* sums, int index) const {
    const int seq = find_segment(sums, p.num_seqs, index / units());
    const int tiles = sums[seq + 1] - sums[seq], start = units() * sums[seq];
    const int unit = (index - start) / tiles;
    return {seq, unit, start + unit * tiles, start + (unit + 1) * tiles};
  }
  // K of the tile; V lies num_kv_heads * block_size tokens behind.
  __device__ __nv_bfloat16* tile_data(const Segment& s, int tile) const {
    const auto position = static_cast<unsigned>(tile * kTile);
    const auto size = static_cast<unsigned>(p.kv.block_size);
    const int64_t block =
        p.block_table[static_cast<int64_t>(s.seq) * p.block_table_stride + position / size];
    return cache + p.kv.offset_in_block(block, position % size, s.unit / parts(), 0);
  }

  __device__ void run() const {
    extern __shared__ float shared[];
    __shared__ Segment
        pieces[kWarps][2];       // in `parts`: of a segment that began before, in the warp
    __shared__ Segment open[2];  // likewise of the block
    int* sums = reinterpret_cast<int*>(shared + 2 * kWarps * part_floats(part_heads()));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < 2) pieces[warp][lane].seq = -1;
    if (warp == 0 && lane < 2) open[lane].seq = -1;
    prefix_sums<kThreads>(sums, p.num_seqs, [&](int s) {
      const TileRange tiles = tiles_of(p, p.seq_lens[s]);
      return tiles.end - tiles.begin;
    });
    const Share share = share_of_block(sums, p.num_seqs, units());
    const int each = (share.end - share.begin + kWarps - 1) / kWarps;
    const int begin = min(share.end, share.begin + warp * each);
    stream(sums, begin, min(share.end, begin + each), shared, pieces[warp]);
    if (share.begin >= share.end) return;
    __syncthreads();
    merge_warps(share, shared, pieces, open);
    merge_blocks(share, shared, open);
  }

  // Tiles begin .. end - 1; leaves unfinished pieces in shared memory. All but the new tokens' keys
  // and values are older than the predecessor, and so are the batch's lengths and blocks: they are
  // fetched before the wait.
  __device__ void stream(const int* sums, int begin, int end, float* shared,
                         Segment* pieces) const {
    if (begin >= end) {
      wait_for_predecessor();
      release_successor();
      return;
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t to_values = static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.block_size * kDim;
    DecodeWarp<kDim, kHeadTiles> state;
    Segment segment = segment_at(sums, begin);
    int seq_len = p.seq_lens[segment.seq];
    int tile = tiles_of(p, seq_len).begin + begin - segment.begin;
    __nv_bfloat16* data = tile_data(segment, tile);
    const bool is_old = kStores || (tile + 1) * kTile < seq_len;
    if (is_old) {
      state.load_k(data, lane);
      state.load_v(data + to_values, lane);
    }
    wait_for_predecessor();
    release_successor();
    if (!is_old) {
      state.load_k(data, lane);
      state.load_v(data + to_values, lane);
    }
    for (int index = begin; index < end;) {
      const Segment current = segment;
      const int piece_end = min(current.end, end), piece_begin = index;
      const int last = seq_len, first = p.first_visible(seq_len - 1);
      const int heads = num_heads(current.unit);
      if constexpr (kStores) {
        if (piece_end == current.end && slots[current.seq] >= 0) {
          const int last_tile = (last - 1) / kTile;
          __nv_bfloat16* const k_tile = tile_data(current, last_tile);
          store_token(current, last, k_tile, k_tile + to_values, lane);
          if (tile == last_tile) {  // it was fetched without the token
            state.load_k(data, lane);
            state.load_v(data + to_values, lane);
          }
        }
      }
      state.begin(qkv +
                      static_cast<int64_t>(current.seq) *
                          (p.params.num_heads + 2 * p.kv.num_kv_heads) * kDim +
                      first_head(current.unit) * kDim,
                  heads, lane);
      if constexpr (kStores) {
#pragma unroll
        for (int t = 0; t < kHeadTiles; ++t)
          state.norm_and_turn(state.q[t], rope.q_norm, rope.eps, angles(last), lane);
      }
      while (index < piece_end) {
        const int valid_begin = first - tile * kTile, valid_end = last - tile * kTile;
        float s[kHeadTiles][4];
        state.scores(s);
        if (++index < end) {  // on to the next tile
          ++tile;
          if (index == current.end) {
            segment = segment_at(sums, index);
            seq_len = p.seq_lens[segment.seq];
            tile = tiles_of(p, seq_len).begin;
          }
          data = tile_data(segment, tile);
          state.load_k(data, lane);
        }
        state.weigh(s, p.params, valid_begin, valid_end, lane);
        if (valid_begin > 0 || valid_end < kTile) state.mask_v(valid_begin, valid_end, lane);
        state.add_values(s);
        if (index < end) state.load_v(data + to_values, lane);
      }
      state.finish();
      if (piece_begin == current.begin && piece_end == current.end) {
        state.for_each_vector(heads, lane, [&](int head, int i, auto& x, float, float total) {
          for (float& value : x) value /= total;
          store_vector(out_row(current, head) + i, x);
        });
        continue;
      }
      const int slot = current.begin >= begin ? 1 : 0;
      const Partial<kDim> partial = {shared + (2 * warp + slot) * part_floats(part_heads()),
                                     part_heads()};
      state.for_each_vector(heads, lane, [&](int head, int i, auto& x, float largest, float total) {
        store_vector(partial.values(head) + i, x);
        *partial.largest(head) = largest;
        *partial.total(head) = total;
      });
      if (lane == 0) pieces[slot] = current;
    }
  }

  __device__ const float* angles(int seq_len) const {
    return rope.cos_sin + static_cast<int64_t>(seq_len - 1) * kDim;
  }

  // Key and value of the sequence's last token into their tile, for the warp itself to read back.
  __device__ void store_token(const Segment& s, int seq_len, __nv_bfloat16* k_tile,
                              __nv_bfloat16* v_tile, int lane) const {
    const int kv_heads = p.kv.num_kv_heads, offset = (seq_len - 1) % kTile * kDim;
    const __nv_bfloat16* row =
        qkv + (static_cast<int64_t>(s.seq) * (p.params.num_heads + 2 * kv_heads) +
               p.params.num_heads + s.unit) *
                  kDim;
    uint32_t key[kDim / 32][4];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) stream_load(key[i], row + 32 * i + lane % 4 * 8);
    DecodeWarp<kDim, kHeadTiles>::norm_and_turn(key, rope.k_norm, rope.eps, angles(seq_len), lane);
    if (lane < 4) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i)
        *reinterpret_cast<uint4*>(k_tile + offset + 32 * i + lane * 8) =
            make_uint4(key[i][0], key[i][1], key[i][2], key[i][3]);
    }
    if (lane < kDim / 8)
      *reinterpret_cast<uint4*>(v_tile + offset + lane * 8) =
          *reinterpret_cast<const uint4*>(row + kv_heads * kDim + lane * 8);
    __syncwarp();
  }

  // A warp merges the segment that began in it, the first warp that of the blocks before as well.
  __device__ void merge_warps(const Share& share, float* shared, const Segment (*pieces)[2],
                              Segment* open) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int slot = warp == 0 ? 0 : 1; slot < 2; ++slot) {
      const Segment segment = pieces[warp][slot];
      if (segment.seq < 0) continue;
      int last = warp;
      while (last + 1 < kWarps && pieces[last + 1][0].seq >= 0 &&
             pieces[last + 1][0].begin == segment.begin)
        ++last;
      const auto part = [&](int w) -> Partial<kDim> {
        return {shared + (2 * w + (w == warp ? slot : 0)) * part_floats(part_heads()),
                part_heads()};
      };
      const int block_slot = segment.begin >= share.begin ? 1 : 0;
      const bool complete = block_slot == 1 && segment.end <= share.end;
      const Partial<kDim> target = block_partial(blockIdx.x, block_slot);
      for (int head = 0; head < num_heads(segment.unit); ++head) {
        float largest = -INFINITY, total = 0;
        for (int w = warp; w <= last; ++w) largest = fmaxf(largest, *part(w).largest(head));
        for (int w = warp; w <= last; ++w)
          total += *part(w).total(head) * exp2f(*part(w).largest(head) - largest);
        for (int i = lane * 4; i < kDim; i += 128) {
          float sum[4] = {};
          for (int w = warp; w <= last; ++w) {
            const float weight = exp2f(*part(w).largest(head) - largest);
            float x[4];
            load_vector(x, part(w).values(head) + i);
            for (int e = 0; e < 4; ++e) sum[e] += weight * x[e];
          }
          if (complete) {
            for (float& value : sum) value /= total;
            store_vector(out_row(segment, head) + i, sum);
          } else {
            store_vector(target.values(head) + i, sum);
          }
        }
        if (!complete && lane == 0) {
          *target.largest(head) = largest;
          *target.total(head) = total;
        }
      }
      if (!complete && lane == 0) open[block_slot] = segment;
    }
  }

  // The last block that brings a piece of a segment puts all of them together.
  __device__ void merge_blocks(const Share& share, float* shared, const Segment* open) const {
    __shared__ bool is_last[2];
    __syncthreads();
    if (open[0].seq < 0 && open[1].seq < 0) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x < 2 && open[threadIdx.x].seq >= 0) {
      const Segment& segment = open[threadIdx.x];
      int* arrivals = workspace.arrivals + share.first_block_of(segment);
      const int others = share.last_block_of(segment) - share.first_block_of(segment);
      is_last[threadIdx.x] = atomicAdd(arrivals, 1) == others;
      if (is_last[threadIdx.x]) *arrivals = 0;  // for the next launch
      __threadfence();
    }
    __syncthreads();
    for (int slot = 0; slot < 2; ++slot) {
      if (open[slot].seq < 0 || !is_last[slot]) continue;
      combine(open[slot], share.first_block_of(open[slot]), share.last_block_of(open[slot]),
              shared);
      __syncthreads();
    }
  }

  __device__ void combine(const Segment& segment, int first, int last, float* weights) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int heads = num_heads(segment.unit);
    const auto part = [&](int block) { return block_partial(block, block == first ? 1 : 0); };
    for (int head = warp; head < heads; head += kWarps) {
      float largest = -INFINITY, total = 0;
      for (int b = first + lane; b <= last; b += 32)
        largest = fmaxf(largest, __ldcg(part(b).largest(head)));
      largest = warp_max(largest);
      for (int b = first + lane; b <= last; b += 32) {
        const float weight = exp2f(__ldcg(part(b).largest(head)) - largest);
        total += weight * __ldcg(part(b).total(head));
        weights[(b - first) * heads + head] = weight;
      }
      total = warp_sum(total);
      for (int b = first + lane; b <= last; b += 32) weights[(b - first) * heads + head] /= total;
    }
    __syncthreads();
    for (int i = threadIdx.x * 2; i < heads * kDim; i += kThreads * 2) {
      const int head = i / kDim;
      float2 sum = {};
#pragma unroll 8
      for (int b = first; b <= last; ++b) {
        const float weight = weights[(b - first) * heads + head];
        const float2 x = __ldcg(reinterpret_cast<const float2*>(part(b).values(head) + i % kDim));
        sum.x += weight * x.x;
        sum.y += weight * x.y;
      }
      *reinterpret_cast<uint32_t*>(out_row(segment, head) + i % kDim) = pack_bfloat16(sum.x, sum.y);
    }
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(kThreads, Kernel::kBlocksPerSm)
    decode_attention_kernel(const __grid_constant__ Kernel kernel) {
  kernel.run();
}

template <typename Kernel>
void launch_decode(cudaStream_t stream, const Kernel& kernel) {
  const AttentionProblem& p = kernel.p;
  // No more blocks than the longest contexts of the block table can need.
  const int64_t most_tiles =
      int64_t{p.num_seqs} * kernel.units() * p.block_table_stride * (p.kv.block_size / kTile);
  const int most_blocks = kernel.workspace.num_multiprocessors * Kernel::kBlocksPerSm;
  const int num_blocks = static_cast<int>(std::min<int64_t>(
      most_blocks, div_up(most_tiles, kMinBlockTiles) + int64_t{p.num_seqs} * kernel.units()));
  const int partials = 2 * kWarps * Kernel::part_floats(kernel.part_heads());
  NANOVLLM_CHECK(num_blocks * kernel.part_heads() <= partials);  // combine()'s weights
  launch(stream, decode_attention_kernel<Kernel>, num_blocks, kThreads,
         sizeof(float) * (partials + p.num_seqs + 1), kernel);
}

}  // namespace

size_t attention_workspace_bytes(int num_multiprocessors) {
  const AttentionWorkspace layout = attention_workspace(nullptr, num_multiprocessors);
  return reinterpret_cast<size_t>(layout.arrivals + kMaxBlocksPerSm * num_multiprocessors);
}

AttentionWorkspace attention_workspace(void* data, int num_multiprocessors) {
  constexpr size_t kFloats = std::max(Partial<256>::floats(8), Partial<128>::floats(16));
  const size_t partials = size_t{2} * kMaxBlocksPerSm * num_multiprocessors * kFloats;
  float* const floats = static_cast<float*>(data);
  return {floats, reinterpret_cast<int*>(floats + partials), num_multiprocessors};
}

bool launch_decode_attention(cudaStream_t stream, __nv_bfloat16* out, const __nv_bfloat16* qkv,
                             __nv_bfloat16* cache, const AttentionProblem& problem,
                             const AttentionWorkspace& workspace) {
  return with_head_dim(problem.kv.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim <= 128) {
      if (problem.group > 8)
        return launch_decode(
            stream, DecodeKernel<kDim, 2, false>{out, qkv, cache, problem, workspace, {}, nullptr});
    }
    launch_decode(stream,
                  DecodeKernel<kDim, 1, false>{out, qkv, cache, problem, workspace, {}, nullptr});
  });
}

bool launch_store_and_decode_attention(cudaStream_t stream, __nv_bfloat16* out,
                                       const __nv_bfloat16* qkv, __nv_bfloat16* cache,
                                       const AttentionProblem& problem,
                                       const AttentionWorkspace& workspace, const Rope& rope,
                                       const int32_t* slots) {
  const int dim = problem.kv.head_dim;
  if (rope.rotary_dim != dim || problem.group > 8) return false;
  if (dim == 64) {
    launch_decode(stream,
                  DecodeKernel<64, 1, true>{out, qkv, cache, problem, workspace, rope, slots});
  } else if (dim == 128) {
    launch_decode(stream,
                  DecodeKernel<128, 1, true>{out, qkv, cache, problem, workspace, rope, slots});
  } else {
    return false;
  }
  return true;
}

}  // namespace nanovllm::cuda
