// How the pieces of a sequence's keys become its results: every warp leaves its piece's sums in
// device memory, and the one that comes last puts all together in the order of their positions.
// Nobody waits for a piece that is not computed
// yet: words of hand_over.cuh are waited for, which are on their way.
#pragma once

#include <algorithm>

#include "backend/cuda/attention/attention_pieces.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/device/hand_over.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda::key_pieces {

// What a lane holds of a piece: of a row tile t rows lane / 4 (h = 0) and lane / 4 + 8.
template <int kDim, int kRowTiles>
struct PieceState {
  static constexpr int kValueTiles = kDim / 8;

  float o[kRowTiles][kValueTiles][4] = {};
  float largest[kRowTiles][2];
  float total[kRowTiles][2] = {};  // over this lane's keys
  int own[kRowTiles][2];           // positions of its rows

  __device__ PieceState(const KeyPiece& piece, int heads, int lane) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[t][h] = -INFINITY;
        own[t][h] = piece.position + row_of(t, h, lane) / heads;
      }
    }
  }
  __device__ static int row_of(int t, int h, int lane) { return 16 * t + 8 * h + lane / 4; }
};

// Softmax's weights are exp2(score * factor - base).
__device__ inline float base_of(float largest, float factor) {
  return largest == -INFINITY ? 0.f : largest * factor;
}
// What sums of weights are worth that were made with the largest score `before`, where it is `now`,
// whose base is `base`: exactly 1 where nothing larger came.
__device__ inline float worth(float before, float now, float base, float factor) {
  return now == before ? 1.f : exp2_approximate(fmaf(before, factor, -base));
}

// Words of a row of a piece: the sums, the largest score and the total of weights.
constexpr int piece_row_words(int head_dim) { return head_dim + 4; }

template <int kDim, int kRowTiles>
class PieceMerge {
 public:
  using State = PieceState<kDim, kRowTiles>;

  __device__ PieceMerge(const PieceArguments& arguments, const PieceJob& job, int lane)
      : arguments_(arguments),
        p_(arguments.p),
        job_(job),
        num_heads_(arguments.num_heads(job.unit)),
        num_rows_(job.piece.num_tokens * num_heads_),
        lane_(lane) {}

  __device__ void finish(const State& state) const {
    // Of many rows that would be much code.
    const bool is_whole = kRowTiles == 1 && job_.piece.count == 1;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (16 * t + 8 * h >= num_rows_) continue;
        Sums sums;
        sums.largest = state.largest[t][h];
        sums.total = add_up(state.total[t][h]);
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          // -0 becomes 0, as it does where there are more pieces.
          sums.o[n][0] = state.o[t][n][2 * h] + 0.f;
          sums.o[n][1] = state.o[t][n][2 * h + 1] + 0.f;
        }
        if (is_whole) {
          write(sums, State::row_of(t, h, lane_));
        } else {
          send(sums, State::row_of(t, h, lane_));
        }
      }
    }
    if (is_whole || !is_last()) return;
#pragma unroll 1
    for (int row = lane_ / 4; row - lane_ / 4 < num_rows_; row += 8) put_together(row);
  }

 private:
  static constexpr int kPairs = kDim / 16, kValueTiles = State::kValueTiles;
  // Of a row a lane has vectors of two neighbours in two tiles each, and then the largest score and
  // the total of weights.
  static constexpr int kVectors = kPairs + 1;

  // Of a row.
  struct Sums {
    float largest = -INFINITY, total = 0;
    float o[kValueTiles][2] = {};
  };

  // A total of weights over all keys.
  __device__ static float add_up(float total) {
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    return total + __shfl_xor_sync(0xffffffffu, total, 2);
  }

  // Of a piece's row; the last vector is of a whole row of lanes.
  __device__ uint32_t* words_of(int piece, int row, int vector) const {
    const int64_t slot = int64_t{job_.piece.first_slot + piece} * arguments_.units + job_.unit;
    uint32_t* const words = arguments_.words + arguments_.slots +
                            (slot * arguments_.slot_rows + row) * piece_row_words(kDim);
    return words + vector * 16 + (vector < kPairs ? lane_ % 4 * 4 : 0);
  }

  __device__ void send(const Sums& sums, int row) const {
    if (row >= num_rows_) return;
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      const auto& low = sums.o[2 * v];
      const auto& high = sums.o[2 * v + 1];
      store_words(words_of(job_.piece.index, row, v),
                  {__float_as_uint(low[0]), __float_as_uint(low[1]), __float_as_uint(high[0]),
                   __float_as_uint(high[1])});
    }
    if (lane_ % 4 == 0) {
      store_words(words_of(job_.piece.index, row, kPairs),
                  {__float_as_uint(sums.largest), __float_as_uint(sums.total), 0, 0});
    }
  }

  // Whether all other pieces have come to this. The last one leaves the counter as it was.
  __device__ bool is_last() const {
    uint32_t before = 0;
    if (lane_ == 0) {
      const int unit = job_.piece.seq * arguments_.units + job_.unit;
      uint32_t* const counter = arguments_.words + kCounterWords + unit;
      before = atomicAdd(counter, 1) + 1;
      if (before + 1 == static_cast<uint32_t>(job_.piece.count)) store_word(counter, ~0u);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    return before + 1 == static_cast<uint32_t>(job_.piece.count);
  }

  // The sums of a piece to those of all before it.
  __device__ void add(Sums& sums, const uint4* words) const {
    const float factor = score_factor(p_);
    const float largest = __uint_as_float(words[kPairs].x);
    const float total = __uint_as_float(words[kPairs].y);
    const float now = fmaxf(sums.largest, largest), base = base_of(now, factor);
    const float keep = worth(sums.largest, now, base, factor);
    const float weight = worth(largest, now, base, factor);
    sums.largest = now;
    sums.total = fmaf(sums.total, keep, __fmul_rn(total, weight));
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      const float x[4] = {__uint_as_float(words[v].x), __uint_as_float(words[v].y),
                          __uint_as_float(words[v].z), __uint_as_float(words[v].w)};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& sum = sums.o[2 * v + e / 2][e % 2];
        sum = fmaf(sum, keep, __fmul_rn(x[e], weight));
      }
    }
  }

  __device__ void put_together(int row) const {
    // More at once would wait for memory less often, but have no registers.
    constexpr int kAtOnce = std::max(1, 24 / kVectors);
    const int count = job_.piece.count;
    Sums sums;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      uint4 words[kAtOnce * kVectors];
      load_written(words, false, [&](int i) {
        const int piece = first + i / kVectors, vector = i % kVectors;
        if (piece >= count || row >= num_rows_) return uint4{0, 0, 0, 0};
        return load_words(words_of(piece, row, vector));
      });
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= count) continue;
        add(sums, &words[j * kVectors]);
        leave_holes(first + j, row);
      }
    }
    write(sums, row);
  }

  __device__ void leave_holes(int piece, int row) const {
    if (row >= num_rows_) return;
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      store_words(words_of(piece, row, v), kHoles);
    }
    if (lane_ % 4 == 0) store_words(words_of(piece, row, kPairs), kHoles);
  }

  __device__ void write(const Sums& sums, int row) const {
    if (row >= num_rows_) return;
    const int64_t token = job_.piece.first_token + row / num_heads_;
    const int head = arguments_.first_head(job_.unit) + row % num_heads_;
    const float total = sums.total + p_.sink_weight(head, sums.largest * score_factor(p_));
    const float factor = total > 0 ? 1 / total : 0.f;
    __nv_bfloat16* const target = arguments_.out + (token * p_.params.num_heads + head) * kDim;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
      const int element = n * 8 + lane_ % 4 * 2;
      float first[1] = {sums.o[n][0] * factor}, second[1] = {sums.o[n][1] * factor};
      p_.apply_gate<__nv_bfloat16>(first, token, head, element);
      p_.apply_gate<__nv_bfloat16>(second, token, head, element + 1);
      *reinterpret_cast<uint32_t*>(target + element) = pack_bfloat16(first[0], second[0]);
    }
  }

  const PieceArguments& arguments_;
  const AttentionProblem& p_;
  const PieceJob& job_;
  const int num_heads_, num_rows_;
  const int lane_;
};

}  // namespace nanovllm::cuda::key_pieces
