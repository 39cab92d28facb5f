// Paged attention for one query token a sequence, over the K and V of its whole context: bound by
// memory, it must move 2 * num_kv_heads * head_dim elements a context token and nothing else to
// speak of.
//
// Which tiles a warp computes: attention_decode_plan.h; where they and the queries lie:
// attention_decode_batch.cuh; how tiles come into shared memory: attention_decode_ring.cuh; what
// the warp does to a tile: attention_decode_warp.cuh; how pieces of a sequence and head that lie in
// several warps are put together: attention_decode_merge.cuh.
#include <algorithm>
#include <limits>
#include <optional>

#include "backend/cuda/attention/attention_decode_batch.cuh"
#include "backend/cuda/device/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kStaticSharedBytes = 1 << 10;  // at most, of a block

// Of a block. Half as many where a device's multiprocessors have too little shared memory for the
// rings of more.
constexpr int most_warps(int dim) { return dim > 128 ? 4 : 8; }

// kStores: qk_norm_rope_store's work is done on the way. A block fills a multiprocessor.
template <int kDim, int kHeadTiles, bool kStores, int kWarps>
struct DecodeKernel : DecodeBatch<kDim, kHeadTiles, kStores> {
  using Batch = DecodeBatch<kDim, kHeadTiles, kStores>;
  using Batch::cache, Batch::p, Batch::part_heads, Batch::rope;
  using Batch::kChunks;
  using typename Batch::Rows;
  using Warp = DecodeWarp<kDim, kHeadTiles>;
  using Ring = TileRing<kDim>;
  using Layout = TileLayout<kDim>;
  using Head = MergedHead<kDim>;
  static constexpr int kNumWarps = kWarps;
  static constexpr int kThreads = kWarps * 32;
  static_assert(is_tensor_core_dim(kDim));  // the cache is swizzled for these
  static_assert(!kStores || kHeadTiles == 1);
  // A thread's part of the weights of the norms of q and k.
  static constexpr int kNorms = (2 * kDim + kThreads - 1) / kThreads;
  using Norms = float[kNorms];
  static constexpr int kMinBlocks = kDim <= 128 && kHeadTiles == 1 ? 2 : 1;

  __nv_bfloat16* out;
  uint32_t* words;  // AttentionWorkspace::decode_words
  int stages;
  DecodePlan plan;
  bool plan_is_new;  // from the predecessor

  __device__ void write(const Head& merged, const Segment& s, int head) const {
    head += this->first_head(s.unit);
    merged.template write<!kStores>(out, p, s.seq, head);
  }

  // Of a KV head's query heads, `group`, as many units of work as a warp's tiles need.
  void divide(int group, int num_kv_heads) {
    this->parts = div_up(group, Batch::kHeads);
    part_heads = std::min(group, Batch::kHeads);
    this->units = num_kv_heads * this->parts;
  }

  // Shared memory: the warps' rings of tiles; for each warp, queries and then a piece; pieces of
  // segments that began before their warp; where kStores, the weights of the norms of q and k, and
  // for each warp a row of cos and sin.
  __host__ __device__ int ring_bytes() const { return stages * Ring::kTileBytes; }
  __host__ __device__ int part_bytes() const {
    return Partial<kDim>::floats(part_heads) * static_cast<int>(sizeof(float));
  }
  __host__ __device__ int scratch_bytes() const {
    return part_bytes() > Warp::kQueryBytes ? part_bytes() : Warp::kQueryBytes;
  }
  __device__ char* scratch(char* shared, int warp) const {
    return shared + kWarps * ring_bytes() + warp * scratch_bytes();
  }
  __device__ Partial<kDim> warp_partial(char* shared, int warp, int slot) const {
    char* const data =
        slot == 1 ? scratch(shared, warp) : scratch(shared, kWarps) + warp * part_bytes();
    return {reinterpret_cast<float*>(data), part_heads};
  }
  __host__ __device__ int norms_offset() const {
    return kWarps * (ring_bytes() + scratch_bytes() + part_bytes());
  }
  __device__ float* norms_of(char* shared) const {
    return reinterpret_cast<float*>(shared + norms_offset());
  }
  __device__ float* angles(char* shared, int warp) const {
    return norms_of(shared) + (2 + warp) * kDim;
  }
  int shared_bytes() const {
    constexpr int kRowBytes = kDim * static_cast<int>(sizeof(float));
    return Ring::kAlignment + norms_offset() + (kStores ? (2 + kWarps) * kRowBytes : 0);
  }

  __device__ void run() const {
    extern __shared__ char dynamic[];
    __shared__ Barrier arrived[kWarps][kMaxTileStages];
    __shared__ Segment pieces[kWarps][2];  // of a segment that began before, in the warp
    char* const shared = dynamic + (-shared_address(dynamic) & (Ring::kAlignment - 1));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Norms norms = {};
    if constexpr (kStores) load_norms(norms);
    if (plan_is_new) wait_for_predecessor();
    const WarpWalk walk = plan.warps[blockIdx.x * kWarps + warp];
    const BlockShare share = plan.shares[blockIdx.x];
    if (lane < 2) pieces[warp][lane].seq = -1;
    Ring ring(shared + warp * ring_bytes(), arrived[warp], stages);
    stream(walk, norms, ring, shared, pieces[warp]);
    if (share.begin == share.end) return;
    __syncthreads();
    merge(share, shared, pieces);
  }

  __device__ void load_norms(Norms& norms) const {
#pragma unroll
    for (int n = 0; n < kNorms; ++n) {
      const uint32_t i = threadIdx.x + n * kThreads;
      const float* norm = i < kDim ? rope.q_norm : rope.k_norm;
      norms[n] = norm == nullptr || i >= 2 * kDim ? 0 : norm[i % kDim];
    }
  }
  __device__ void keep_norms(const Norms& norms, char* shared) const {
#pragma unroll
    for (int n = 0; n < kNorms; ++n) {
      const uint32_t i = threadIdx.x + n * kThreads;
      if (i < 2 * kDim) norms_of(shared)[i] = norms[n];
    }
  }

  // All tiles of a warp; leaves unfinished pieces in shared memory. With kStores all but the new
  // tokens' keys and values are older than the predecessor, and so are the batch's lengths and
  // blocks: they are fetched before the wait.
  __device__ void stream(WarpWalk walk, const Norms& norms, Ring& ring, char* shared,
                         Segment* pieces) const {
    const int begin = walk.index, end = walk.end;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Segment current = walk.segment;
    const auto fetch = [&] {
      const __nv_bfloat16* keys = cache + static_cast<int64_t>(walk.row) * kDim;
      ring.fetch(walk.row < 0 ? nullptr : keys, keys + this->to_values());
      if (walk.row >= 0) this->advance(walk);
    };
    int seq_len = walk.first_seq_len;
    float4 turn = {};
    if constexpr (kStores) {
      if (begin < end) {
        fetch();
        turn = this->load_angles(seq_len, lane);
      }
      keep_norms(norms, shared);
      __syncthreads();
    }
    wait_for_predecessor();
    release_successor();
    if (begin == end) return;
    // Ahead of most tiles: what the memory is asked for first comes first.
    Rows rows = this->load_rows(current, end, lane);
#pragma unroll 1
    for (int i = kStores ? 1 : 0; i < stages; ++i) fetch();
    Warp state;
    for (int index = begin; index < end;) {
      if (index == current.end) {
        current = this->segment_after(current);
        rows = this->load_rows(current, end, lane);
        seq_len = p.seq_lens[current.seq];
        if constexpr (kStores) turn = this->load_angles(seq_len, lane);
      }
      const int piece_begin = index, piece_end = min(current.end, end);
      const int heads = this->num_heads(current.unit);
      const int first = p.first_visible(seq_len - 1);
      int tile = first / kTile + index - current.begin;
      const int new_tile = rows.slot >= 0 ? (seq_len - 1) / kTile : -1;
      prepare(rows, turn, current, shared, lane);
      state.begin(scratch(shared, warp), lane);
      for (; index < piece_end; ++index, ++tile) {
        const int valid_begin = first - tile * kTile, valid_end = seq_len - tile * kTile;
        char* const keys = ring.wait();
        char* const values = keys + Ring::kHalfBytes;
        if (valid_begin > 0 || valid_end < kTile || (kStores && tile == new_tile)) {
          if (kStores && tile == new_tile) put_token(keys, valid_end - 1, rows.token, lane);
          clear(values, 0, valid_begin, lane);
          clear(values, valid_end, kTile, lane);
          ring.order_writes();
        }
        float s[kHeadTiles][4];
        state.scores(s, keys, lane);
        state.weigh(s, p.params, valid_begin, valid_end, lane);
        state.add_values(s, values, lane);
        ring.release();
        fetch();
      }
      const bool is_complete = piece_begin == current.begin && piece_end == current.end;
      const int slot = is_complete || current.begin >= begin ? 1 : 0;
      const Partial<kDim> piece = warp_partial(shared, warp, slot);
      state.finish(piece, heads, lane);
      if (is_complete) {
#pragma unroll 1
        for (int head = 0; head < heads; ++head) write(Head(piece, head), current, head);
        __syncwarp();
      } else if (lane == 0) {
        pieces[slot] = current;
      }
    }
  }

  // Zeros in place of values of what is no token, so that a weight of 0 makes 0 of anything.
  __device__ void clear(char* values, int begin, int end, int lane) const {
#pragma unroll 1
    for (int token = begin; token < end; ++token) {
      if (lane < kDim / 8) {
        *reinterpret_cast<uint4*>(values + Layout::offset(token, lane)) = uint4{0, 0, 0, 0};
      }
    }
  }

  // The rows into shared memory, where kStores normalised and turned; the newest token into the
  // cache. What is read on the way lies in shared memory: the copies that are under way would be
  // waited for.
  __device__ void prepare(Rows& rows, const float4& turn, const Segment& s, char* shared,
                          int lane) const {
    const int warp = threadIdx.x / 32;
    float* const cos_sin = angles(shared, warp);
    const float* const norm = rope.q_norm != nullptr ? norms_of(shared) : nullptr;
    if constexpr (kStores) {
      if (lane * 4 < kDim) *reinterpret_cast<float4*>(cos_sin + lane * 4) = turn;
      __syncwarp();
      rows.part[0].norm_and_turn(norm, rope.eps, cos_sin, lane);
    }
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      rows.part[t].store(scratch(shared, warp) + (8 * t + lane / 4) * kQueryStride<kDim>, lane);
    }
    __syncwarp();
    if (!kStores || rows.slot < 0) return;
    auto* const token = reinterpret_cast<__nv_bfloat16*>(&rows.token);
    float key[8];  // with the values in the other lanes
    load_vector(key, token);
    norm_and_turn(key, lane % kChunks * 8, kChunks, kDim, norm == nullptr ? nullptr : norm + kDim,
                  rope.eps, cos_sin, kDim);
    if (lane < kChunks) store_vector(token, key);
    const int block = rows.slot / p.kv.block_size, offset = rows.slot - block * p.kv.block_size;
    __nv_bfloat16* const target =
        cache + p.kv.offset_in_block(block, offset, s.unit, Batch::holds_value(lane)) +
        (lane % kChunks * 8 ^ KvView::swizzle(kDim, offset));
    if (lane < 2 * kChunks) *reinterpret_cast<uint4*>(target) = rows.token;
  }

  // The newest token was not in memory when its tile was fetched.
  __device__ void put_token(char* tile, int place, const uint4& token, int lane) const {
    if (lane < 2 * kChunks) {
      *reinterpret_cast<uint4*>(tile + lane / kChunks * Ring::kHalfBytes +
                                Layout::offset(place, lane % kChunks)) = token;
    }
  }

  // The block's warps put the pieces together, a head of a segment a warp.
  __device__ void merge(const BlockShare& share, char* shared, const Segment (*pieces)[2]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Lane 0 has a segment that began before the block, lane w + 1 the one that begins in warp w.
    const bool has_run = lane <= kWarps && pieces[max(lane - 1, 0)][min(lane, 1)].seq >= 0;
    const uint32_t runs = __ballot_sync(0xffffffffu, has_run);
    const int rank = __popc(runs & ((1u << lane) - 1)), items = __popc(runs) * part_heads;
#pragma unroll 1
    for (int item = warp; item < items; item += kWarps) {
      const int run = item / part_heads, head = item - run * part_heads;
      const int place = __ffs(__ballot_sync(0xffffffffu, has_run && rank == run)) - 1;
      const int first_warp = max(place - 1, 0), slot = min(place, 1);
      const Segment segment = pieces[first_warp][slot];
      if (head >= this->num_heads(segment.unit)) continue;
      const bool continues = lane > first_warp && lane < kWarps && pieces[lane][0].seq >= 0 &&
                             pieces[lane][0].begin == segment.begin;
      const int n = 1 + __popc(__ballot_sync(0xffffffffu, continues));
      Head merged(n, head,
                  [&](int i) { return warp_partial(shared, first_warp + i, i == 0 ? slot : 0); });
      const int block = static_cast<int>(blockIdx.x);
      if (slot == 0) {
        merged.send(words_of(block, head));
        continue;
      }
      const int others =
          segment.end > share.end ? block_of_tile(share, segment.end - 1) - block : 0;
      merged.receive(others, [&](int i) { return words_of(block + 1 + i, head); });
      write(merged, segment, head);
    }
  }

  // The block that has a tile of the block's cut.
  __device__ int block_of_tile(const BlockShare& share, int tile) const {
    const int i = tile - share.cut_begin, split = share.longer * (share.each + 1);
    const int part = i < split ? i / (share.each + 1) : share.longer + (i - split) / share.each;
    return share.first_block + part / kWarps;
  }
  __device__ uint32_t* words_of(int block, int head) const {
    return words + (block * part_heads + head) * Head::kWords;
  }
};

// Registers are kept few enough for blocks of other kernels beside.
template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    decode_attention_kernel(const __grid_constant__ Kernel kernel) {
  kernel.run();
}

template <bool kStores, int kDim, int kHeadTiles, typename F>
bool with_warps(int num_warps, F&& f) {
  constexpr int kMost = most_warps(kDim);
  return try_constant<kMost, kMost / 2>(num_warps, [&]<int kWarps>() {
    f.template operator()<DecodeKernel<kDim, kHeadTiles, kStores, kWarps>>();
  });
}

// Calls f.operator()<Kernel>() with the one for heads of this size, of which `group` share a KV
// head; false if there is none.
template <bool kStores, typename F>
[[nodiscard]] bool with_kernel(int head_dim, int group, int num_warps, F&& f) {
  bool has_warps = false;
  const auto find_warps = [&]<int kDim>() {
    constexpr int kMostTiles = kStores || kDim > 128 ? 1 : 2;
    has_warps = group > 8 ? with_warps<kStores, kDim, kMostTiles>(num_warps, f)
                          : with_warps<kStores, kDim, 1>(num_warps, f);
  };
  if constexpr (kStores) {
    return try_constant<64, 128>(head_dim, find_warps) && has_warps;
  } else {
    return try_constant<64, 96, 128, 256>(head_dim, find_warps) && has_warps;
  }
}

// Nothing: too many tiles for numbers of 32 bits, too many sequences, or too little shared memory.
template <typename Kernel>
std::optional<DecodeChoice> choice_of(const AttentionShape& shape, const DecodeRows& rows,
                                      const AttentionTraits& traits) {
  Kernel kernel = {};
  kernel.divide(shape.group(), shape.num_kv_heads);
  // No more blocks than the longest contexts of the block table can need.
  const int64_t segments = int64_t{rows.num_seqs} * kernel.units;
  const int64_t most_tiles = segments * rows.block_table_stride * (shape.block_size / kTile);
  if (most_tiles > std::numeric_limits<int>::max() / 2 || rows.num_seqs > DecodePlans::kMaxSeqs) {
    return {};
  }
  const int most_bytes = traits.block_bytes - kStaticSharedBytes;
  kernel.stages = kMaxTileStages;
  while (kernel.stages > 1 && kernel.shared_bytes() > most_bytes) --kernel.stages;
  if (kernel.shared_bytes() > most_bytes) return {};
  return DecodeChoice{
      .num_warps = Kernel::kNumWarps,
      .num_blocks = static_cast<int>(std::min<int64_t>(
          traits.num_multiprocessors, div_up(most_tiles, kMinBlockTiles) + segments)),
      .stages = kernel.stages,
      .shared_bytes = kernel.shared_bytes()};
}

template <bool kStores>
std::optional<DecodeChoice> choose(const AttentionShape& shape, const DecodeRows& rows,
                                   const AttentionTraits& traits) {
  const int most = most_warps(shape.head_dim);
  std::optional<DecodeChoice> choice;
  for (const int num_warps : {most, most / 2}) {
    const auto choose_for = [&]<typename Kernel>() {
      choice = choice_of<Kernel>(shape, rows, traits);
    };
    if (!with_kernel<kStores>(shape.head_dim, shape.group(), num_warps, choose_for)) return {};
    if (choice) break;
  }
  return choice;
}

template <bool kStores>
void launch_decode(const Bf16Attention& a, const DecodeChoice& choice, const Rope& rope = {},
                   const int32_t* slots = nullptr) {
  const AttentionProblem& p = a.p;
  const auto launch_kernel = [&]<typename Kernel>() {
    Kernel kernel = {{a.qkv, a.cache, p, rope, slots}, a.out, a.workspace.decode_words};
    kernel.divide(p.group, p.kv.num_kv_heads);
    kernel.stages = choice.stages;
    const auto [plan, is_new] = a.workspace.plans->find(
        a.stream,
        {p.seq_lens, p.block_table, p.block_table_stride, p.num_seqs, p.params.window,
         p.kv.num_kv_heads, kernel.units, p.kv.block_size, choice.num_blocks, choice.num_warps});
    kernel.plan = plan;
    kernel.plan_is_new = is_new;
    launch(a.stream, decode_attention_kernel<Kernel>, choice.num_blocks, Kernel::kThreads,
           static_cast<size_t>(choice.shared_bytes), kernel);
  };
  const bool is_planned =
      with_kernel<kStores>(p.kv.head_dim, p.group, choice.num_warps, launch_kernel);
  NANOVLLM_CHECK(is_planned);
}

}  // namespace

size_t decode_attention_bytes(int num_multiprocessors) {
  constexpr size_t kWords = std::max(8 * MergedHead<256>::kWords, 16 * MergedHead<128>::kWords);
  return sizeof(uint32_t) * kWords * num_multiprocessors;
}

std::optional<DecodeChoice> plan_decodes(const AttentionShape& shape, const DecodeRows& rows,
                                         const AttentionTraits& traits, bool stores) {
  std::optional<DecodeChoice> choice =
      stores ? choose<true>(shape, rows, traits) : choose<false>(shape, rows, traits);
  if (choice && stores) choice->path = AttentionPath::kStoreAndStream;
  return choice;
}

void launch_decode_attention(const Bf16Attention& call, const DecodeChoice& choice) {
  launch_decode<false>(call, choice);
}

void launch_store_and_decode_attention(const Bf16Attention& call, const Rope& rope,
                                       const int32_t* slots, const DecodeChoice& choice) {
  launch_decode<true>(call, choice, rope, slots);
}

}  // namespace nanovllm::cuda
