// Paged attention for one query token a sequence, over the K and V of its whole context: bound by
// memory, it must move 2 * num_kv_heads * head_dim elements a context token and nothing else to
// speak of.
//
// Which tiles a warp computes: attention_decode_share.cuh; what it does to a tile:
// attention_decode_warp.cuh. Pieces of a sequence and head that lie in several warps are merged in
// shared memory, those that lie in several blocks by the last of these blocks to arrive
// (https://pytorch.org/blog/flash-decoding).
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_decode_ring.cuh"
#include "backend/cuda/attention_decode_warp.cuh"
#include "backend/cuda/launch.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kDynamicSharedBytes = 226 << 10;  // of a block: all but its static arrays

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

// Two neighbouring elements of a head, put together from pieces.
struct Merged {
  float largest = -INFINITY, total = 0;
  float2 sum = {};

  __device__ void add(float piece_largest, float piece_total, float2 values) {
    const float now = fmaxf(largest, piece_largest);
    const float keep = exp2f(largest - now), weight = exp2f(piece_largest - now);
    largest = now;
    total = total * keep + piece_total * weight;
    sum.x = sum.x * keep + values.x * weight;
    sum.y = sum.y * keep + values.y * weight;
  }
};

// kStores: qk_norm_rope_store's work is done on the way. A block fills a multiprocessor.
template <int kDim, int kHeadTiles, bool kStores>
struct DecodeKernel {
  using Warp = DecodeWarp<kDim, kHeadTiles>;
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kWarps = kDim > 128 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  using Work = Share<kWarps>;

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
  int stages;            // set at launch

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
  // Shared memory: the warps' rings of tiles, the pieces of segments that began before their warp,
  // prefix sums. A warp's piece of a segment that begins in it comes last: into its idle ring.
  __host__ __device__ int ring_bytes() const { return stages * kTileBytes<kDim>; }
  __device__ Partial<kDim> warp_partial(char* shared, int warp, int slot) const {
    char* const pieces = shared + kWarps * ring_bytes();
    return {reinterpret_cast<float*>(slot == 1 ? shared + warp * ring_bytes() : pieces) +
                (slot == 1 ? 0 : warp * part_floats(part_heads())),
            part_heads()};
  }
  __host__ __device__ int sums_offset() const {
    return kWarps * (ring_bytes() + part_floats(part_heads()) * static_cast<int>(sizeof(float)));
  }
  int shared_bytes(int num_blocks) const {
    const int arrays = has_few_segments(units(), p.num_seqs, num_blocks) ? 2 : 1;
    return sums_offset() + arrays * (p.num_seqs + 1) * static_cast<int>(sizeof(int));
  }

  __device__ Segment segment_at(const int* sums, int index) const {
    const int seq = find_segment(sums, p.num_seqs, index / units());
    const int tiles = sums[seq + 1] - sums[seq], start = units() * sums[seq];
    const int unit = (index - start) / tiles;
    return {seq, unit, start + unit * tiles, start + (unit + 1) * tiles};
  }
  __device__ int first_tile(int seq) const {
    return p.params.window > 0 ? tiles_of(p, p.seq_lens[seq]).begin : 0;
  }

  __device__ const int32_t* block_row(int seq) const {
    return p.block_table + static_cast<int64_t>(seq) * p.block_table_stride;
  }
  // K of a tile of the block; V lies num_kv_heads * block_size tokens behind.
  __device__ __nv_bfloat16* tile_data(int block, int unit, int tile_in_block) const {
    return cache + p.kv.offset_in_block(block, tile_in_block * kTile, unit / parts(), 0);
  }

  // Walks over a warp's tiles to fetch them. The next block's number is loaded a block ahead: the
  // warp would wait for it.
  struct Walk {
    int index, end;  // at first the tile before the warp's
    Segment segment;
    int block_index, tile_in_block, next_block;
    const __nv_bfloat16* k_tile;  // none at the end
  };
  __device__ void enter_segment(Walk& walk, const int* sums) const {
    walk.segment = segment_at(sums, walk.index);
    const int tile = first_tile(walk.segment.seq) + walk.index - walk.segment.begin;
    const int tiles = p.kv.block_size / kTile;
    const int32_t* const row = block_row(walk.segment.seq);
    walk.block_index = tile / tiles, walk.tile_in_block = tile % tiles;
    const int block = row[walk.block_index];
    walk.next_block = row[min(walk.block_index + 1, p.block_table_stride - 1)];
    walk.k_tile = tile_data(block, walk.segment.unit, walk.tile_in_block);
  }
  __device__ void advance(Walk& walk, const int* sums) const {
    if (++walk.index >= walk.end) {
      walk.k_tile = nullptr;
    } else if (walk.index == walk.segment.end) {
      enter_segment(walk, sums);
    } else if (++walk.tile_in_block * kTile < p.kv.block_size) {
      walk.k_tile += kTile * kDim;
    } else {
      walk.tile_in_block = 0;
      walk.k_tile = tile_data(walk.next_block, walk.segment.unit, 0);
      ++walk.block_index;
      walk.next_block =
          block_row(walk.segment.seq)[min(walk.block_index + 1, p.block_table_stride - 1)];
    }
  }
  __device__ int64_t to_values() const {
    return static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.block_size * kDim;
  }

  __device__ void run() const {
    // The copy engine takes twice the requests for tiles that do not start with a line.
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t arrived[kWarps][kMaxStages];
    __shared__ Segment pieces[kWarps][2];  // of a segment that began before, in the warp
    int* sums = reinterpret_cast<int*>(shared + sums_offset());
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < 2) pieces[warp][lane].seq = -1;
    prefix_sums<kThreads>(sums, p.num_seqs, [&](int s) {
      const TileRange tiles = tiles_of(p, p.seq_lens[s]);
      return tiles.end - tiles.begin;
    });
    const Work share = share_of_block<kWarps>(sums, p.num_seqs, units());
    TileRing<kDim> ring(shared + warp * ring_bytes(), arrived[warp], stages);
    stream(sums, share.start(warp), share.start(warp + 1), ring, shared, pieces[warp]);
    const int begin = share.begin(), end = share.end();
    if (begin == end) return;
    __syncthreads();
    Segment open[2] = {{-1, 0, 0, 0}, {-1, 0, 0, 0}};  // of the block, as `pieces` of a warp
    merge_warps(begin, end, shared, pieces, open);
    merge_blocks(share, open);
  }

  // Tiles begin .. end - 1; leaves unfinished pieces in shared memory. With kStores all but the new
  // tokens' keys and values are older than the predecessor, and so are the batch's lengths and
  // blocks: they are fetched before the wait.
  __device__ void stream(const int* sums, int begin, int end, TileRing<kDim>& ring, char* shared,
                         Segment* pieces) const {
    if (begin == end) {
      wait_for_predecessor();
      release_successor();
      return;
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Segment current = segment_at(sums, begin);
    int seq_len = p.seq_lens[current.seq];
    Walk walk = {begin - 1, end, {-1, 0, 0, begin}};
    const auto fetch = [&] {
      advance(walk, sums);
      ring.fetch(walk.k_tile, walk.k_tile + to_values());
    };
    if constexpr (kStores) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) fetch();
      touch(seq_len, lane);
    }
    wait_for_predecessor();
    release_successor();
    if constexpr (!kStores) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) fetch();
    }
    Warp state;
    for (int index = begin; index < end;) {
      if (index == current.end) {
        current = segment_at(sums, index);
        seq_len = p.seq_lens[current.seq];
      }
      const int piece_begin = index, piece_end = min(current.end, end);
      const int first = p.first_visible(seq_len - 1), heads = num_heads(current.unit);
      int tile = first / kTile + index - current.begin;
      state.begin(qkv_row(current.seq) + first_head(current.unit) * kDim, heads, lane);
      [[maybe_unused]] typename Warp::NewToken token;
      int new_tile = -1;
      if constexpr (kStores) {
        if (piece_end == current.end && slots[current.seq] >= 0) {
          new_tile = (seq_len - 1) / kTile;
          const int tiles = p.kv.block_size / kTile;
          const int block = block_row(current.seq)[new_tile / tiles];
          store_token(token, current, seq_len, tile_data(block, current.unit, new_tile % tiles),
                      lane);
        }
#pragma unroll
        for (int t = 0; t < kHeadTiles; ++t)
          state.norm_and_turn(state.q[t], rope.q_norm, rope.eps, angles(seq_len), lane);
      }
      for (; index < piece_end; ++index, ++tile) {
        const int valid_begin = first - tile * kTile, valid_end = seq_len - tile * kTile;
        const char* const data = ring.wait();
        state.load_k(data, lane);
        if (kStores && tile == new_tile) state.put_key(token, valid_end - 1, lane);
        float s[kHeadTiles][4];
        state.scores(s);
        state.load_v(data + kTileBytes<kDim> / 2, lane);
        state.weigh(s, p.params, valid_begin, valid_end, lane);
        if (kStores && tile == new_tile) state.put_value(token, valid_end - 1, lane);
        if (valid_begin > 0 || valid_end < kTile) state.mask_v(valid_begin, valid_end, lane);
        state.add_values(s);
        ring.release();
        fetch();
      }
      state.finish();
      if (piece_begin == current.begin && piece_end == current.end) {
        state.for_each_vector(heads, lane, [&](int head, int i, auto& x, float, float total) {
          const float factor = 1 / total;
          for (float& value : x) value *= factor;
          store_vector(out_row(current, head) + i, x);
        });
        continue;
      }
      const int slot = current.begin >= begin ? 1 : 0;
      const Partial<kDim> partial = warp_partial(shared, warp, slot);
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

  __device__ const __nv_bfloat16* qkv_row(int seq) const {
    return qkv + static_cast<int64_t>(seq) * (p.params.num_heads + 2 * p.kv.num_kv_heads) * kDim;
  }

  // Into the cache what the norm and the rotation will read.
  __device__ void touch(int seq_len, int lane) const {
    if (lane * 4 >= kDim) return;
    if (rope.q_norm != nullptr) {
      touch_line(rope.q_norm + lane * 4);
      touch_line(rope.k_norm + lane * 4);
    }
    touch_line(angles(seq_len) + lane * 4);
  }

  // Key and value of the sequence's last token, for the warp itself and into their tile.
  __device__ void store_token(typename Warp::NewToken& x, const Segment& s, int seq_len,
                              __nv_bfloat16* k_tile, int lane) const {
    constexpr int kVector = Warp::kVector;
    const int token = (seq_len - 1) % kTile;
    const __nv_bfloat16* k_row = qkv_row(s.seq) + (p.params.num_heads + s.unit) * kDim;
    const __nv_bfloat16* v_row = k_row + p.kv.num_kv_heads * kDim;
#pragma unroll
    for (int i = 0; i < Warp::kKSteps; ++i) {
      const uint4 part = *reinterpret_cast<const uint4*>(k_row + 32 * i + lane % 4 * 8);
      x.key[i][0] = part.x, x.key[i][1] = part.y, x.key[i][2] = part.z, x.key[i][3] = part.w;
    }
#pragma unroll
    for (int i = 0; i < Warp::kVSteps; ++i) {
      const int element = (8 * i + lane / 4) * kVector;
      x.value[i] = *reinterpret_cast<const typename Warp::Vector*>(v_row + element);
      if (lane % 4 == 0) {
        *reinterpret_cast<typename Warp::Vector*>(k_tile + to_values() + token * kDim + element) =
            x.value[i];
      }
    }
    Warp::norm_and_turn(x.key, rope.k_norm, rope.eps, angles(seq_len), lane);
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < Warp::kKSteps; ++i) {
      *reinterpret_cast<uint4*>(k_tile + token * kDim + 32 * i + lane * 8) =
          make_uint4(x.key[i][0], x.key[i][1], x.key[i][2], x.key[i][3]);
    }
  }

  // The block puts the warps' pieces of each segment together.
  __device__ void merge_warps(int begin, int end, char* shared, const Segment (*pieces)[2],
                              Segment (&open)[2]) const {
#pragma unroll 1
    for (int i = 0; i <= kWarps; ++i) {
      const int warp = i == 0 ? 0 : i - 1, slot = i == 0 ? 0 : 1;
      const Segment segment = pieces[warp][slot];
      if (segment.seq < 0) continue;
      int last = warp;
      while (last + 1 < kWarps && pieces[last + 1][0].seq >= 0 &&
             pieces[last + 1][0].begin == segment.begin)
        ++last;
      const auto part = [&](int w) { return warp_partial(shared, w, w == warp ? slot : 0); };
      const bool begins = segment.begin >= begin;
      const bool complete = begins && segment.end <= end;
      if (!complete) (begins ? open[1] : open[0]) = segment;
      const Partial<kDim> target = block_partial(blockIdx.x, begins);
#pragma unroll 1
      for (int i = threadIdx.x * 2; i < num_heads(segment.unit) * kDim; i += kThreads * 2) {
        const int head = i / kDim, element = i % kDim;
        Merged merged;
#pragma unroll 1
        for (int w = warp; w <= last; ++w) {
          merged.add(*part(w).largest(head), *part(w).total(head),
                     *reinterpret_cast<const float2*>(part(w).values(head) + element));
        }
        if (complete) {
          write(segment, head, element, merged);
          continue;
        }
        *reinterpret_cast<float2*>(target.values(head) + element) = merged.sum;
        if (element == 0) {
          *target.largest(head) = merged.largest;
          *target.total(head) = merged.total;
        }
      }
    }
  }

  __device__ void write(const Segment& segment, int head, int element, const Merged& x) const {
    const float factor = 1 / x.total;
    *reinterpret_cast<uint32_t*>(out_row(segment, head) + element) =
        pack_bfloat16(x.sum.x * factor, x.sum.y * factor);
  }

  // The last block that brings a piece of a segment puts all of them together.
  __device__ void merge_blocks(const Work& share, const Segment (&open)[2]) const {
    if (open[0].seq < 0 && open[1].seq < 0) return;
    __shared__ bool is_last[2];
    __syncthreads();
    if (threadIdx.x < 2) {
      const Segment& segment = threadIdx.x == 0 ? open[0] : open[1];
      is_last[threadIdx.x] = false;
      if (segment.seq >= 0) {
        const int first = share.block_of(segment.begin), last = share.block_of(segment.end - 1);
        int* arrivals = workspace.arrivals + first;
        __threadfence();  // the block's pieces, which the barrier made this thread's own
        is_last[threadIdx.x] = atomicAdd(arrivals, 1) == last - first;
        if (is_last[threadIdx.x]) *arrivals = 0;  // for the next launch
        __threadfence();
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int slot = 0; slot < 2; ++slot) {
      if (!is_last[slot]) continue;
      const Segment segment = slot == 0 ? open[0] : open[1];
      combine(segment, share.block_of(segment.begin), share.block_of(segment.end - 1));
    }
  }

  __device__ void combine(const Segment& segment, int first, int last) const {
    constexpr int kAtOnce = 4;  // pieces on their way
#pragma unroll 1
    for (int i = threadIdx.x * 2; i < num_heads(segment.unit) * kDim; i += kThreads * 2) {
      const int head = i / kDim, element = i % kDim;
      Merged merged;
#pragma unroll 1
      for (int b = first; b <= last; b += kAtOnce) {
        float largest[kAtOnce], total[kAtOnce];
        float2 x[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (b + j > last) continue;
          const Partial<kDim> part = block_partial(b + j, b + j == first ? 1 : 0);
          largest[j] = __ldcg(part.largest(head));
          total[j] = __ldcg(part.total(head));
          x[j] = __ldcg(reinterpret_cast<const float2*>(part.values(head) + element));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (b + j <= last) merged.add(largest[j], total[j], x[j]);
        }
      }
      write(segment, head, element, merged);
    }
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    decode_attention_kernel(const __grid_constant__ Kernel kernel) {
  kernel.run();
}

template <typename Kernel>
void launch_decode(cudaStream_t stream, Kernel kernel) {
  const AttentionProblem& p = kernel.p;
  // No more blocks than the longest contexts of the block table can need.
  const int64_t most_tiles =
      int64_t{p.num_seqs} * kernel.units() * p.block_table_stride * (p.kv.block_size / kTile);
  const int num_blocks = static_cast<int>(
      std::min<int64_t>(kernel.workspace.num_multiprocessors,
                        div_up(most_tiles, kMinBlockTiles) + int64_t{p.num_seqs} * kernel.units()));
  kernel.stages = kMaxStages;
  while (kernel.stages > kMinStages && kernel.shared_bytes(num_blocks) > kDynamicSharedBytes)
    --kernel.stages;
  launch(stream, decode_attention_kernel<Kernel>, num_blocks, Kernel::kThreads,
         static_cast<size_t>(kernel.shared_bytes(num_blocks)), kernel);
}

}  // namespace

size_t attention_workspace_bytes(int num_multiprocessors) {
  const AttentionWorkspace layout = attention_workspace(nullptr, num_multiprocessors);
  return reinterpret_cast<size_t>(layout.arrivals + num_multiprocessors);
}

AttentionWorkspace attention_workspace(void* data, int num_multiprocessors) {
  constexpr size_t kFloats = std::max(Partial<256>::floats(8), Partial<128>::floats(16));
  const size_t partials = size_t{2} * num_multiprocessors * kFloats;
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
        return launch_decode(stream, DecodeKernel<kDim, 2, false>{
                                         out, qkv, cache, problem, workspace, {}, nullptr, 0});
    }
    launch_decode(
        stream, DecodeKernel<kDim, 1, false>{out, qkv, cache, problem, workspace, {}, nullptr, 0});
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
                  DecodeKernel<64, 1, true>{out, qkv, cache, problem, workspace, rope, slots, 0});
  } else if (dim == 128) {
    launch_decode(stream,
                  DecodeKernel<128, 1, true>{out, qkv, cache, problem, workspace, rope, slots, 0});
  } else {
    return false;
  }
  return true;
}

}  // namespace nanovllm::cuda
