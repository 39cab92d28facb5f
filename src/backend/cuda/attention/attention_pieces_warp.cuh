// A warp of attention in pieces, on the tensor cores' products of 16 rows: of a tile first all
// scores, slice by slice, then with their weights the values, so that each row's sums over the keys
// are one chain in the order of their positions. Loops over slices are not unrolled: there is much
// to do for a few keys, and what does not fit into the instruction cache costs more than it saves.
#pragma once

#include "backend/cuda/attention/attention_pieces_merge.cuh"
#include "backend/cuda/attention/attention_pieces_stream.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda::key_pieces {

template <int kDim, int kRowTiles>
class PieceWarp {
 public:
  using Shared = PieceShared<kDim, kRowTiles>;
  using Merge = PieceMerge<kDim, kRowTiles>;
  using State = PieceState<kDim, kRowTiles>;

  __device__ PieceWarp(const PieceArguments& arguments, Shared& shared, char* ring, char* queries)
      : arguments_(arguments),
        p_(arguments.p),
        shared_(shared),
        ring_(ring),
        queries_(queries),
        stream_(arguments, shared, ring, queries) {}

  __device__ void run() {
    stream_.prepare();
    wait_for_predecessor();
    release_successor();
    stream_.start();
    RingPlace<Shared::kQueryBuffers> buffer;
    for (int slot = 0;; slot = (slot + 1) % kJobs, buffer.next()) {
      stream_.begin_item();
      const PieceJob job = shared_.jobs[slot];
      if (job.piece.num_tokens == 0) return;
      stream_.fetch();
      State state(job.piece, arguments_.num_heads(job.unit), lane_);
      shared_.queries_there[buffer.place].wait(buffer.parity);
      use_queries(buffer.place);
#pragma unroll 1
      for (int tile = job.piece.begin / kKeys * kKeys; tile < job.piece.end; tile += kKeys) {
        attend(job.piece, tile, state);
      }
      Merge(arguments_, job, lane_).finish(state);
    }
  }

 private:
  static constexpr int kKeys = Shared::kKeys, kSteps = kDim / 16;
  static constexpr int kValueTiles = State::kValueTiles;
  static constexpr bool kKeepsQueries = Shared::kKeepsQueries;
  // Slices whose products are in flight together, where there are registers for them. Any ring has
  // room for two.
  static constexpr int kAtOnce = kKeepsQueries ? 2 : 1;
  static_assert(kAtOnce <= Shared::kLeastStages);
  using Scores = float[kRowTiles][2][4];
  using Weights = uint32_t[kRowTiles][4];

  // Of row tile t. There may be fewer rows than the products take: these repeat the last one.
  __device__ uint32_t query_address(int t) const {
    const int row = min(16 * t + lane_ % 16, arguments_.slot_rows - 1);
    return own_queries_ + row * Shared::kQueryStride + lane_ / 16 * 16;
  }
  __device__ void use_queries(int buffer) {
    own_queries_ = shared_address(queries_) + buffer * arguments_.slot_rows * Shared::kQueryStride;
    if constexpr (kKeepsQueries) {
      const uint32_t address = query_address(0);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_matrices(queries_in_registers_[i], address + i * 32);
    }
  }

  __device__ void attend(const KeyPiece& piece, int tile, State& state) {
    const int first = max(piece.begin - tile, 0) / kSlice;
    const int last = min(piece.end - tile, kKeys);
    const int end = (last + kSlice - 1) / kSlice;  // slices
    float largest[kRowTiles][2];
    score(piece, tile, first, end, state, largest);
    float base[kRowTiles][2], keep[kRowTiles][2], sums[kRowTiles][2] = {};
    rebase(largest, state, base, keep);
#pragma unroll 1
    for (int i = first; i < end; i += kAtOnce) {
      const int count = min(kAtOnce, end - i);
      Weights weights[kAtOnce];
      char* values[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= count) continue;
        weigh(i + j, base, weights[j], sums);
        values[j] = next_slice();
        if (last < (i + j + 1) * kSlice) clear_values(values[j], last - (i + j) * kSlice);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j < count) add_values(values[j], weights[j], state);
      }
      stream_.pass(count);
      stream_.fetch_ahead();
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        state.total[t][h] = fmaf(state.total[t][h], keep[t][h], sums[t][h]);
      }
    }
  }

  // Leaves the scores of slices first .. end - 1 in shared memory, and in `largest` that of each
  // row of them and of what was before.
  __device__ void score(const KeyPiece& piece, int tile, int first, int end, const State& state,
                        float (&largest)[kRowTiles][2]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) largest[t][h] = state.largest[t][h];
    }
    const int newest = piece.position + piece.num_tokens - 1;
    const bool some_hidden = tile + kKeys - 1 > piece.position || tile < p_.first_visible(newest);
#pragma unroll 1
    for (int i = first; i < end; i += kAtOnce) {
      const int count = min(kAtOnce, end - i);
      Scores s[kAtOnce] = {};
      uint32_t keys[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        keys[j] = j < count ? shared_address(next_slice()) : keys[0];
      }
      multiply_keys(s, keys);
      stream_.pass(count);
      stream_.fetch();
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (j >= count) continue;
        if (some_hidden) hide(s[j], tile + (i + j) * kSlice, state);
        leave(s[j], i + j, largest);
      }
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (float& x : largest[t]) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
      }
    }
  }

  __device__ void hide(Scores& s, int first_key, const State& state) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) hide_keys(s[t], p_, state.own[t], first_key, lane_);
  }
  // Scores of slice i.
  __device__ void leave(const Scores& s, int i, float (&largest)[kRowTiles][2]) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float(&x)[4] = s[t][n];
        largest[t][0] = fmaxf(largest[t][0], fmaxf(x[0], x[1]));
        largest[t][1] = fmaxf(largest[t][1], fmaxf(x[2], x[3]));
        shared_.scores[i][t][n][lane_] = {x[0], x[1], x[2], x[3]};
      }
    }
  }

  // Of the ring, when it is there.
  __device__ char* next_slice() {
    shared_.slice_there[stage_.place].wait(stage_.parity);
    char* const slice = ring_ + stage_.place * Shared::kSliceBytes;
    stage_.next(arguments_.stages);
    return slice;
  }

  __device__ static int swizzle(int token) {
    return is_tensor_core_dim(kDim) ? KvView::swizzle(kDim, token) : 0;
  }

  __device__ void multiply_keys(Scores (&s)[kAtOnce], const uint32_t (&keys)[kAtOnce]) const {
    // B's matrices: columns 0-7 and 8-15 of keys 0-7, then of keys 8-15.
    const int row = (lane_ / 16 * 8 + lane_ % 8) * kDim * 2;
    const int column = lane_ / 8 % 2 * 8, turn = swizzle(lane_);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int place = row + ((16 * step + column) ^ turn) * 2;
      uint32_t b[kAtOnce][4];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) load_matrices(b[j], keys[j] + place);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        uint32_t a[4];
        if constexpr (kKeepsQueries) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = queries_in_registers_[step][i];
        } else {
          load_matrices(a, query_address(t) + step * 32);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          mma_bf16(s[j][t][0], a, b[j][0], b[j][1]);
          mma_bf16(s[j][t][1], a, b[j][2], b[j][3]);
        }
      }
    }
    if (p_.params.soft_cap <= 0) return;
#pragma unroll
    for (Scores& scores : s) {
#pragma unroll
      for (auto& of_rows : scores) cap_scores(of_rows, p_);
    }
  }

  // What the rows have summed up before is worth `keep` of itself.
  __device__ void rebase(const float (&largest)[kRowTiles][2], State& state,
                         float (&base)[kRowTiles][2], float (&keep)[kRowTiles][2]) const {
    const float factor = score_factor(p_);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        base[t][h] = base_of(largest[t][h], factor);
        keep[t][h] = worth(state.largest[t][h], largest[t][h], base[t][h], factor);
        state.largest[t][h] = largest[t][h];
      }
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) state.o[t][n][e] *= keep[t][e / 2];
      }
    }
  }

  // Of slice i.
  __device__ void weigh(int i, const float (&base)[kRowTiles][2], Weights& weights,
                        float (&sums)[kRowTiles][2]) const {
    const float factor = score_factor(p_);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 s = shared_.scores[i][t][n][lane_];
        const float x[2][2] = {{s.x, s.y}, {s.z, s.w}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float low = exp2_approximate(fmaf(x[h][0], factor, -base[t][h]));
          const float high = exp2_approximate(fmaf(x[h][1], factor, -base[t][h]));
          weights[t][2 * n + h] = pack_bfloat16(low, high);
          sums[t][h] += low + high;
        }
      }
    }
  }

  __device__ void add_values(const char* values, const Weights& weights, State& state) const {
    // B's matrices, transposed on the way: keys 0-7, 8-15 of columns 0-7, then of columns 8-15.
    const uint32_t row = shared_address(values) + lane_ % 16 * kDim * 2;
    const int column = lane_ / 16 * 8, turn = swizzle(lane_);
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, row + ((column + 8 * n) ^ turn) * 2);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        mma_bf16(state.o[t][n], weights[t], b[0], b[1]);
        mma_bf16(state.o[t][n + 1], weights[t], b[2], b[3]);
      }
    }
  }

  // Zeros in what is no key, so that a weight of 0 makes 0 of anything.
  __device__ void clear_values(char* values, int end) const {
    constexpr int kChunks = kValueTiles;  // of 8 elements
#pragma unroll 1
    for (int i = lane_; i < (kSlice - end) * kChunks; i += 32) {
      const int key = end + i / kChunks, element = i % kChunks * 8;
      *reinterpret_cast<uint4*>(values + key * kDim * 2 + (element ^ swizzle(key)) * 2) = {};
    }
    order_copies_behind_writes();
    __syncwarp();
  }

  const PieceArguments& arguments_;
  const AttentionProblem& p_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  Shared& shared_;
  char* const ring_;
  char* const queries_;
  PieceStream<kDim, kRowTiles> stream_;
  uint32_t own_queries_ = 0;  // of the item
  uint32_t queries_in_registers_[kKeepsQueries ? kSteps : 1][4];
  StagePlace stage_;
};

}  // namespace nanovllm::cuda::key_pieces
