// Paged attention for chunks of new tokens behind whatever is cached, on tensor cores: the tiling
// of FlashAttention-2 (https://arxiv.org/abs/2307.08691). It computes 4 * head_dim operations for
// each query head and visible pair of tokens; a block reads K and V once for kRows rows.
//
// A block takes kRows rows of a sequence, see attention_prefill.cuh, through tiles of kKeys
// positions, which start at multiples of kKeys: a row's sums run in an order that depends on its
// position only, and tiles in which it sees nothing leave its state as it was. Its bits depend on
// neither chunks nor batch mates.
#include <algorithm>
#include <optional>

#include "backend/cuda/attention/attention_prefill.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr size_t kStaticSharedBytes = 1024;  // at most, of a block

// A warp has kRowTiles * 16 rows: fewer where there is too little work for all multiprocessors.
template <int kDim, int kRowTiles>
struct PrefillKernel {
  static_assert(is_tensor_core_dim(kDim));  // the cache is swizzled for these
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;
  static constexpr int kStride = kDim + 8;   // of rows in shared memory: no bank conflicts
  static constexpr int kVectors = kDim / 8;  // of 16 bytes in a row
  static constexpr int kKeyTiles = kKeys / 8, kValueTiles = kDim / 8, kKSteps = kDim / 16;
  static constexpr size_t kSharedBytes = size_t{2} * (kRows + 2 * kKeys) * kStride;

  __nv_bfloat16* out;
  const __nv_bfloat16* qkv;
  const __nv_bfloat16* cache;
  AttentionProblem p;

  using Work = PrefillWork;

  // A warp's state: S and O of kRowTiles * 16 rows, of which a lane holds two in each tile.
  struct State {
    float o[kRowTiles][kValueTiles][4] = {};
    SoftmaxRows rows[kRowTiles];
  };

  // Where the next tile of keys lies: tiles advance by kKeys positions, 16 of them in one block.
  struct KeyCursor {
    const int32_t* table;
    int block, offset;  // of the tile's first position
    __device__ void advance(int positions, int block_size) {
      offset += positions;
      while (offset >= block_size) {
        offset -= block_size;
        ++block;
      }
    }
  };

  __device__ void run() const {
    extern __shared__ __nv_bfloat16 shared[];
    int* sums = reinterpret_cast<int*>(shared) + kSharedBytes / sizeof(int);
    // The lengths are older than the predecessor, which released this kernel after it had waited.
    const int num_pieces = count_prefill_pieces<kThreads, kRows>(sums, p);
    wait_for_predecessor();
    release_successor();
    const auto piece = static_cast<int>(blockIdx.y);
    if (piece < num_pieces) {
      attend(prefill_work<kRows>(sums, p, piece, static_cast<int>(blockIdx.x)), shared);
    }
  }

  __device__ void attend(const Work& work, __nv_bfloat16* shared) const {
    __nv_bfloat16* const queries = shared;
    __nv_bfloat16* const keys = queries + kRows * kStride;
    __nv_bfloat16* const values = keys + kKeys * kStride;
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * kWarpRows;
    const int last_row = min(work.row + kRows, work.num_rows) - 1;
    const int first_position = work.context + work.row / p.group;
    const int last_position = work.context + last_row / p.group;

    State state;
    const int begin = p.first_visible(first_position) / 16 * 16;  // in the first block that is seen
    int tile = begin / kKeys * kKeys;                             // its first position
    KeyCursor cursor = {p.block_table + static_cast<int64_t>(work.seq) * p.block_table_stride,
                        tile / p.kv.block_size, tile % p.kv.block_size};
    const int end = last_position + 1;
    load_queries(work, last_row, queries);
    if (tile < end) load_keys(work, cursor, tile, begin, end, 0, keys);
    commit_copies();
    for (; tile < end; tile += kKeys) {
      wait_for_copies<0>();
      __syncthreads();  // the keys are here, and nobody reads the last tile's values
      load_keys(work, cursor, tile, begin, end, 1, values);
      commit_copies();
      float s[kRowTiles][kKeyTiles][4] = {};
      multiply_keys(queries + warp_row * kStride, keys, s, lane);
      if (p.params.soft_cap > 0) {
#pragma unroll
        for (auto& scores : s) cap_scores(scores, p);
      }
      const bool some_hidden =
          tile + kKeys - 1 > first_position || tile < p.first_visible(last_position);
      if (some_hidden) hide(s, work, work.row + warp_row + lane / 4, tile, lane);
      weigh(s, state);
      wait_for_copies<0>();
      __syncthreads();  // the values are here, and nobody reads the keys
      if (tile + kKeys < end) {
        cursor.advance(kKeys, p.kv.block_size);
        load_keys(work, cursor, tile + kKeys, begin, end, 0, keys);
        commit_copies();
      }
      add_values(values, s, state, lane);
    }
    if (end <= 0) {  // padding: the queries were not waited for
      wait_for_copies<0>();
      __syncthreads();
    }
    write(work, last_row, state, queries + warp_row * kStride);
  }

  __device__ void load_queries(const Work& work, int last_row, __nv_bfloat16* queries) const {
    for (int i = threadIdx.x; i < kRows * kVectors; i += kThreads) {
      const int row = i / kVectors, vector = i % kVectors;
      const auto [token, head] = work.place_of(min(work.row + row, last_row), p.group);
      copy_async(shared_address(queries + row * kStride + vector * 8),
                 qkv + token * p.row_width + head * kDim + vector * 8, work.row + row <= last_row);
    }
  }

  // Keys (or values) of positions tile .. tile + kKeys - 1; zeros before `begin` and from `end` on.
  __device__ void load_keys(const Work& work, KeyCursor cursor, int tile, int begin, int end,
                            int is_value, __nv_bfloat16* target) const {
    constexpr int kEach = (16 * kVectors + kThreads - 1) / kThreads;  // of 16 positions
#pragma unroll
    for (int group = 0; group < kKeys; group += 16) {
      // Positions before `begin` may lie in blocks that were given back, those from `end` on behind
      // the block table.
      const bool is_there = begin <= tile + group && tile + group < end;
      const int64_t block = is_there ? cursor.table[cursor.block] : 0;
      const __nv_bfloat16* source =
          cache + p.kv.offset_in_block(block, cursor.offset, work.kv_head, is_value);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int i = threadIdx.x + j * kThreads;
        if (16 * kVectors % kThreads != 0 && i >= 16 * kVectors) break;
        const int row = i / kVectors, vector = i % kVectors;
        copy_async(shared_address(target + (group + row) * kStride + vector * 8),
                   source + row * kDim + (vector * 8 ^ KvView::swizzle(kDim, row)),
                   is_there && tile + group + row < end);
      }
      cursor.advance(16, p.kv.block_size);
    }
  }

  __device__ static void multiply_keys(const __nv_bfloat16* queries, const __nv_bfloat16* keys,
                                       float (&s)[kRowTiles][kKeyTiles][4], int lane) {
    // A's matrices: rows 0-7, 8-15, then the same of the next 8 columns. B's: columns 0-7, 8-15 of
    // keys 0-7, then of keys 8-15.
    const uint32_t query = shared_address(queries + lane % 16 * kStride + lane / 16 * 8);
    const uint32_t key =
        shared_address(keys + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8);
#pragma unroll
    for (int step = 0; step < kKSteps; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        load_matrices(a[t], query + (16 * t * kStride + 16 * step) * 2);
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, key + (8 * n * kStride + 16 * step) * 2);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_bf16(s[t][n], a[t], b[0], b[1]);
          mma_bf16(s[t][n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  // `row` is the lane's first.
  __device__ void hide(float (&s)[kRowTiles][kKeyTiles][4], const Work& work, int row, int tile,
                       int lane) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const int first = row + 16 * t;
      const int own[2] = {work.context + first / p.group, work.context + (first + 8) / p.group};
      hide_keys(s[t], p, own, tile, lane);
    }
  }

  // s becomes the tile's weights.
  __device__ void weigh(float (&s)[kRowTiles][kKeyTiles][4], State& state) const {
    const float factor = score_factor(p);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float keep[2];
      weigh_keys(s[t], state.rows[t], factor, keep);
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) state.o[t][n][e] *= keep[e / 2];
      }
    }
  }

  __device__ static void add_values(const __nv_bfloat16* values,
                                    const float (&s)[kRowTiles][kKeyTiles][4], State& state,
                                    int lane) {
    // B's matrices, transposed on the way: keys 0-7, 8-15 of columns 0-7, then of columns 8-15.
    const uint32_t value = shared_address(values + lane % 16 * kStride + lane / 16 * 8);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const float(&left)[4] = s[t][2 * step];
        const float(&right)[4] = s[t][2 * step + 1];
        a[t][0] = pack_bfloat16(left[0], left[1]);
        a[t][1] = pack_bfloat16(left[2], left[3]);
        a[t][2] = pack_bfloat16(right[0], right[1]);
        a[t][3] = pack_bfloat16(right[2], right[3]);
      }
#pragma unroll
      for (int n = 0; n < kValueTiles; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, value + (16 * step * kStride + 8 * n) * 2);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_bf16(state.o[t][n], a[t], b[0], b[1]);
          mma_bf16(state.o[t][n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  // Through the warp's own rows of the queries' memory, so that rows go out in whole vectors.
  __device__ void write(const Work& work, int last_row, State& state, __nv_bfloat16* rows) const {
    const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = work.row + warp_row + 16 * t + 8 * h + lane / 4;
        const float factor = softmax_factor(state.rows[t], h, p, work.head_of(r, p.group));
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          *reinterpret_cast<uint32_t*>(rows + (16 * t + 8 * h + lane / 4) * kStride + 8 * n +
                                       lane % 4 * 2) =
              pack_bfloat16(state.o[t][n][2 * h] * factor, state.o[t][n][2 * h + 1] * factor);
        }
      }
    }
    __syncwarp();
    for (int i = lane; i < kWarpRows * kVectors; i += 32) {
      const int row = i / kVectors, vector = i % kVectors;
      const int r = work.row + warp_row + row;
      if (r > last_row) break;
      const auto [token, head] = work.place_of(r, p.group);
      write_vector(out, rows + row * kStride + vector * 8, p, token, head, vector);
    }
  }
};

template <typename Kernel>
__global__ void __launch_bounds__(kThreads, 2)
    prefill_attention_kernel(const __grid_constant__ Kernel kernel) {
  kernel.run();
}

// Nothing: too little shared memory for so many sequences.
template <typename Kernel>
std::optional<PrefillChoice> choice_of(int row_tiles, int num_seqs, const AttentionTraits& traits) {
  const size_t bytes = Kernel::kSharedBytes + sizeof(int) * (num_seqs + 1);
  if (bytes + kStaticSharedBytes > static_cast<size_t>(traits.block_bytes)) return {};
  return PrefillChoice{.path = AttentionPath::kMma, .row_tiles = row_tiles, .shared_bytes = bytes};
}

template <typename Kernel>
void launch_prefill(const Bf16Attention& call, int num_tokens, size_t shared_bytes) {
  const AttentionProblem& p = call.p;
  const int num_seqs = p.num_seqs - p.first_seq;
  // Every sequence may end in a block that is not full.
  const int64_t rows = int64_t{num_tokens} * p.group;
  const auto blocks =
      static_cast<unsigned>(rows / Kernel::kRows + std::min<int64_t>(rows, num_seqs));
  launch(call.stream, prefill_attention_kernel<Kernel>, dim3(p.kv.num_kv_heads, blocks), kThreads,
         shared_bytes, Kernel{call.out, call.qkv, call.cache, p});
}

}  // namespace

std::optional<PrefillChoice> plan_mma_prefill(const AttentionShape& shape, const PrefillRows& batch,
                                              const AttentionTraits& traits) {
  std::optional<PrefillChoice> choice;
  const auto choose = [&]<int kDim>() {
    if constexpr (kDim <= 128) {
      using Large = PrefillKernel<kDim, 2>;
      const int64_t rows = int64_t{batch.num_tokens} * shape.group();
      if (rows / batch.num_seqs > Large::kRows / 2 &&
          rows / Large::kRows * shape.num_kv_heads >= traits.num_multiprocessors) {
        choice = choice_of<Large>(2, batch.num_seqs, traits);
        return;
      }
    }
    choice = choice_of<PrefillKernel<kDim, 1>>(1, batch.num_seqs, traits);
  };
  return try_constant<64, 96, 128, 256>(shape.head_dim, choose) ? choice : std::nullopt;
}

void launch_prefill_attention(const Bf16Attention& call, int num_tokens,
                              const PrefillChoice& choice) {
  with_constant<64, 96, 128, 256>(call.p.kv.head_dim, [&]<int kDim>() {
    if constexpr (kDim <= 128) {
      if (choice.row_tiles == 2) {
        return launch_prefill<PrefillKernel<kDim, 2>>(call, num_tokens, choice.shared_bytes);
      }
    }
    launch_prefill<PrefillKernel<kDim, 1>>(call, num_tokens, choice.shared_bytes);
  });
}

}  // namespace nanovllm::cuda
