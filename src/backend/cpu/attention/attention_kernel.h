// Attention of a tile of rows over the keys and values of a paged cache: one algorithm for decodes
// and prefill chunks, compiled once for each instruction set (see simd.h).
//
// Online softmax in tiles of 64 keys: Milakov and Gimelshein, "Online normalizer calculation for
// softmax" (2018); Dao et al., "FlashAttention" (2022). Why a row's bits never depend on the rows
// beside it, on chunk sizes or on threads:
// - tiles and spans begin at fixed absolute positions, and every element of a product is one chain
//   of additions over ascending dimensions or positions;
// - a row's sum is kept in 16 lanes (lane = position mod 16) until the span ends;
// - what a row does not see changes nothing: its weights are 0, a tile or span without visible
//   keys rescales by exactly 1, and adding 0 to a number gives that number. (Zeros may change their
//   sign; the finished row has positive ones only.)
//
// Dot describes the products: Operand is the type of queries and weights, kDepth the consecutive
// dimensions or tokens that one step() sums, kRows x kCols the register tile; with up to kFewRows
// rows it has other columns.
#pragma once

#include "backend/cpu/attention/attention_task.h"
#include "backend/cpu/simd.h"

namespace nanovllm {
namespace {

constexpr int kKeyTile = 64;  // keys of one softmax step
constexpr int kSubtile = 16;  // keys of a cache tile
// Below every score, and finite, so that differences of maxima are never NaN.
constexpr float kNoScore = -1e30f;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int padded_rows(int rows) { return (rows + 15) / 16 * 16; }

struct SoftmaxState {
  float* max;
  float* sum;
  float* acc;  // [rows, padded_dim]

  SoftmaxState(float* memory, int rows)
      : max(memory),
        sum(memory + padded_rows(rows)),
        acc(memory + 2 * static_cast<int64_t>(padded_rows(rows))) {}
};

template <typename Dot>
class AttentionKernel {
  using Operand = typename Dot::Operand;
  using Cache = typename Dot::Cache;

 public:
  static void attend(const AttentionTask& task, float* scratch) {
    AttentionKernel kernel(task, scratch);
    float* memory = kernel.state_memory_;
    const int64_t stride = attention_state_floats(kMaxAttentionRows, task.padded_dim);
    const SoftmaxState total(memory, task.rows);
    const SoftmaxState next(memory + stride, task.rows);
    kernel.compute_span(task.first_span, total);
    for (int span = task.first_span + 1; span < task.end_span; ++span) {
      kernel.compute_span(span, next);
      merge(task, total, next);
    }
    finish(task, total);
  }

  static void attend_span(const AttentionTask& task, float* scratch, float* state) {
    AttentionKernel(task, scratch).compute_span(task.first_span, SoftmaxState(state, task.rows));
  }

  static void combine(const AttentionTask& task, float* states, int64_t stride, int num_spans) {
    const SoftmaxState total(states, task.rows);
    for (int i = 1; i < num_spans; ++i) {
      merge(task, total, SoftmaxState(states + i * stride, task.rows));
    }
    finish(task, total);
  }

 private:
  AttentionKernel(const AttentionTask& task, float* scratch) : task_(task) {
    constexpr int64_t kRows = kMaxAttentionRows;
    scores_ = scratch;
    weights_ = reinterpret_cast<Operand*>(scores_ + kRows * kKeyTile);
    lane_sums_ = scores_ + 2 * kRows * kKeyTile;
    tile_max_ = lane_sums_ + kRows * kLanes;
    rescale_ = tile_max_ + kRows;
    state_memory_ = rescale_ + kRows;
    q_ = reinterpret_cast<Operand*>(state_memory_ +
                                    2 * attention_state_floats(kMaxAttentionRows, task.padded_dim));
    for (int r = 0; r < task.rows; ++r) {
      const int row = task.first_row + r;
      const Cache* from = static_cast<const Cache*>(task.q) + row / task.group * task.q_stride +
                          static_cast<int64_t>(row % task.group) * task.head_dim;
      Operand* to = q_ + static_cast<int64_t>(r) * task.head_dim;
      int d = 0;
      for (; d + kLanes <= task.head_dim; d += kLanes) Simd::store(to + d, Simd::load(from + d));
      const int rest = task.head_dim - d;
      if (rest > 0) Simd::store_n(to + d, Simd::load_n(from + d, rest), rest);
    }
  }

  int position(int r) const { return task_.first_position + (task_.first_row + r) / task_.group; }
  // Keys that row r sees: first_visible .. end_visible - 1.
  int first_visible(int r) const {
    return task_.window > 0 ? larger(0, position(r) - task_.window + 1) : 0;
  }
  int end_visible(int r) const { return position(r) + 1; }

  void compute_span(int span, const SoftmaxState& state) {
    const int begin = larger(span * kAttentionSpan, first_visible(0) / kSubtile * kSubtile);
    const int end = smaller((span + 1) * kAttentionSpan, end_visible(task_.rows - 1));
    for (int r = 0; r < padded_rows(task_.rows); ++r) state.max[r] = kNoScore;
    const int64_t size = static_cast<int64_t>(task_.rows) * task_.padded_dim;
    for (int64_t i = 0; i < size; i += kLanes) Simd::store(state.acc + i, Simd::set1(0));
    for (int r = 0; r < task_.rows; ++r) Simd::store(lane_sums_ + r * kLanes, Simd::set1(0));
    int tile = begin / kKeyTile * kKeyTile;
    for (; tile < end; tile += kKeyTile) {
      const int first = larger(tile, begin);
      compute_tile(first, smaller(tile + kKeyTile, end), state);
    }
    for (int r = 0; r < task_.rows; ++r) {
      state.sum[r] = Simd::reduce_add(Simd::load(lane_sums_ + r * kLanes));
    }
  }

  // Index of the cache tile of a key, in tiles from the beginning of its block; sets the block.
  int64_t find_tile(int key, int64_t* block) const {
    *block = task_.block_table[key / task_.block_size] * task_.block_bytes;
    return key % task_.block_size / kSubtile;
  }

  // Cache tiles of keys that are worth fetching while those up to `first` are computed: the task's
  // next ones, or those of the task that probably comes next.
  void find_coming(int first, int count, const char** keys) const {
    const int end = smaller(end_visible(task_.rows - 1), task_.end_span * kAttentionSpan);
    int64_t block;
    for (int i = 0; i < count; ++i) {
      const int key = first + i * kSubtile;
      if (key >= end && task_.coming_keys != nullptr) {
        keys[i] = task_.coming_keys +
                  (i - (end - first + kSubtile - 1) / kSubtile) * task_.key_tile_bytes;
      } else {
        const int64_t tile = find_tile(smaller(key, end - 1), &block);
        keys[i] = task_.keys + block + tile * task_.key_tile_bytes;
      }
    }
  }

  // Keys first .. end-1 of one tile; first is a multiple of 16.
  void compute_tile(int first, int end, const SoftmaxState& state) {
    const int subtiles = (end - first + kSubtile - 1) / kSubtile;
    const char *keys[kKeyTile / kSubtile], *values[kKeyTile / kSubtile];
    const char* coming_keys[kKeyTile / kSubtile];
    for (int i = 0; i < subtiles; ++i) {
      int64_t block;
      const int64_t tile = find_tile(first + i * kSubtile, &block);
      keys[i] = task_.keys + block + tile * task_.key_tile_bytes;
      values[i] = task_.values + block + tile * task_.value_tile_bytes;
    }
    find_coming(first + subtiles * kSubtile, subtiles, coming_keys);
    compute_scores(keys, values, subtiles);
    for (int r = 0; r < task_.rows; ++r) {
      tile_max_[r] = scale_and_mask(scores_ + r * kKeyTile, subtiles, first_visible(r) - first,
                                    end_visible(r) - first);
    }
    update_max(state);
    for (int r = 0; r < task_.rows; ++r) {
      compute_weights(r, subtiles, first_visible(r) - first, end_visible(r) - first, state.max[r]);
    }
    add_values(values, coming_keys, subtiles, state.acc);
  }

  // scores[rows, 64] = q k^T
  void compute_scores(const char* const* keys, const char* const* coming, int subtiles) {
    for_each_block<Dot::kRows>(task_.rows, [&]<int R>(int row) {
      constexpr int kCols = is_few(R) ? Dot::kFewRowsKeyCols : Dot::kCols;
      for_each_block<kCols>(subtiles, [&]<int J>(int col) {
        score_block<R, J>(q_ + static_cast<int64_t>(row) * task_.head_dim, keys + col, coming + col,
                          scores_ + row * kKeyTile + col * kLanes);
      });
    });
  }

  template <int R, int J>
  void score_block(const Operand* q, const char* const* keys, const char* const* coming,
                   float* scores) const {
    Floats acc[R][J];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) acc[r][j] = Simd::set1(0);
    }
    const int dim = task_.head_dim;
    for (int d = 0; d < dim; d += Dot::kDepth) {
      const int64_t offset = static_cast<int64_t>(d) * kSubtile * sizeof(Cache);
      typename Dot::Vector k[J];
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) {
        k[j] = Dot::load(keys[j] + offset);
        if constexpr (is_few(R)) prefetch(coming[j] + offset);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Dot::Scalar scalar = Dot::broadcast(q + static_cast<int64_t>(r) * dim + d);
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) acc[r][j] = Dot::step(acc[r][j], scalar, k[j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) Simd::store(scores + r * kKeyTile + j * kLanes, acc[r][j]);
    }
  }

  // Turns products into exponents of 2, those of lanes outside begin .. end-1 into kNoScore, and
  // returns the largest.
  float scale_and_mask(float* scores, int subtiles, int begin, int end) const {
    const bool all = begin <= 0 && end >= subtiles * kSubtile;
    const Floats scale = Simd::set1(task_.soft_cap > 0 ? task_.scale : task_.scale * kLog2E);
    Floats largest = Simd::set1(kNoScore);
    for (int i = 0; i < subtiles; ++i) {
      Floats s = Simd::mul(Simd::load(scores + i * kLanes), scale);
      if (task_.soft_cap > 0) s = cap(s);
      if (!all) s = keep(s, kNoScore, i, begin, end);
      Simd::store(scores + i * kLanes, s);
      largest = Simd::max(s, largest);
    }
    return Simd::reduce_max(largest);
  }

  // soft_cap * tanh(s / soft_cap) * log2(e)
  Floats cap(Floats s) const {
    const Floats e = exp(Simd::mul(s, Simd::set1(2 / task_.soft_cap)));
    const Floats one = Simd::set1(1);
    const Floats tanh = Simd::sub(one, Simd::div(Simd::set1(2), Simd::add(e, one)));
    return Simd::mul(tanh, Simd::set1(task_.soft_cap * kLog2E));
  }

  // Lanes begin .. end-1 of the tile keep their values, the others get `fill`; this is subtile i.
  static Floats keep(Floats x, float fill, int i, int begin, int end) {
    const int low = smaller(larger(begin - i * kSubtile, 0), kSubtile);
    const int high = smaller(larger(end - i * kSubtile, 0), kSubtile);
    return Simd::keep_lanes(x, Simd::set1(fill), low, high);
  }

  // New running maxima, and what they rescale sums and outputs by.
  void update_max(const SoftmaxState& state) {
    for (int r = 0; r < task_.rows; r += kLanes) {
      const int n = smaller(kLanes, task_.rows - r);
      const Floats before = Simd::load(state.max + r);
      const Floats after = Simd::max(Simd::load_n(tile_max_ + r, n), before);
      Simd::store_n(state.max + r, after, n);
      Simd::store(rescale_ + r, exp2(Simd::sub(before, after)));
    }
  }

  // weights[r] = 2^(scores[r] - max), and their sums by lane.
  void compute_weights(int r, int subtiles, int begin, int end, float max) {
    const bool all = begin <= 0 && end >= subtiles * kSubtile;
    const float* scores = scores_ + r * kKeyTile;
    const Floats largest = Simd::set1(max);
    Floats sum = Simd::mul(Simd::load(lane_sums_ + r * kLanes), Simd::set1(rescale_[r]));
    for (int i = 0; i < subtiles; ++i) {
      Floats w = exp2(Simd::sub(Simd::load(scores + i * kLanes), largest));
      if (!all) w = keep(w, 0, i, begin, end);
      sum = Simd::add(sum, w);
      Simd::store(weights_ + r * kKeyTile + i * kLanes, w);
    }
    Simd::store(lane_sums_ + r * kLanes, sum);
  }

  // acc[rows, padded_dim] = acc * rescale + weights v
  void add_values(const char* const* values, const char* const* coming, int subtiles, float* acc) {
    const int dim = task_.padded_dim;
    for_each_block<Dot::kRows>(task_.rows, [&]<int R>(int row) {
      constexpr int kCols = is_few(R) ? Dot::kFewRowsValueCols : Dot::kCols;
      for_each_block<kCols>(dim / kLanes, [&]<int J>(int col) {
        value_block<R, J>(weights_ + row * kKeyTile, rescale_ + row, values, coming, subtiles,
                          col * kLanes, acc + static_cast<int64_t>(row) * dim + col * kLanes);
      });
    });
  }

  template <int R, int J>
  void value_block(const Operand* weights, const float* rescale, const char* const* values,
                   const char* const* coming, int subtiles, int first_dim, float* acc) const {
    const int64_t dim = task_.padded_dim;
    Floats sum[R][J];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) {
        sum[r][j] = Simd::mul(Simd::load(acc + r * dim + j * kLanes), Simd::set1(rescale[r]));
      }
    }
    for (int i = 0; i < subtiles; ++i) {
      for (int token = 0; token < kSubtile; token += Dot::kDepth) {
        const int64_t offset = (token * dim + first_dim * Dot::kDepth) * sizeof(Cache);
        constexpr int64_t kVectorBytes = kLanes * Dot::kDepth * sizeof(Cache);
        typename Dot::Vector v[J];
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
          v[j] = Dot::load(values[i] + offset + j * kVectorBytes);
          if constexpr (is_few(R)) prefetch(coming[i] + offset + j * kVectorBytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const typename Dot::Scalar scalar =
              Dot::broadcast(weights + r * kKeyTile + i * kSubtile + token);
#pragma GCC unroll 8
          for (int j = 0; j < J; ++j) sum[r][j] = Dot::step(sum[r][j], scalar, v[j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) Simd::store(acc + r * dim + j * kLanes, sum[r][j]);
    }
  }

  // With few rows, decodes as a rule, memory is the bound. Each product then fetches what the next
  // one reads, values or the next tile's keys, into the second-level cache: the processor's own
  // prefetching stops at the end of a page, which is where a cache tile of 128 dimensions ends.
  static constexpr bool is_few(int rows) { return rows <= Dot::kFewRows; }
  static void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

  // total = total and next as if they had been one span.
  static void merge(const AttentionTask& task, const SoftmaxState& total,
                    const SoftmaxState& next) {
    float total_scale[kMaxAttentionRows], next_scale[kMaxAttentionRows];
    for (int r = 0; r < task.rows; r += kLanes) {
      const int n = smaller(kLanes, task.rows - r);
      const Floats a = Simd::load(total.max + r), b = Simd::load(next.max + r);
      const Floats max = Simd::max(a, b);
      const Floats scale_a = exp2(Simd::sub(a, max)), scale_b = exp2(Simd::sub(b, max));
      Simd::store(total.max + r, max);
      Simd::store_n(total_scale + r, scale_a, n);
      Simd::store_n(next_scale + r, scale_b, n);
      const Floats sum = Simd::add(Simd::mul(Simd::load_n(total.sum + r, n), scale_a),
                                   Simd::mul(Simd::load_n(next.sum + r, n), scale_b));
      Simd::store_n(total.sum + r, sum, n);
    }
    const int dim = task.padded_dim;
    for (int r = 0; r < task.rows; ++r) {
      float* acc = total.acc + static_cast<int64_t>(r) * dim;
      const float* other = next.acc + static_cast<int64_t>(r) * dim;
      const Floats a = Simd::set1(total_scale[r]), b = Simd::set1(next_scale[r]);
      for (int d = 0; d < dim; d += kLanes) {
        Simd::store(acc + d, Simd::add(Simd::mul(Simd::load(acc + d), a),
                                       Simd::mul(Simd::load(other + d), b)));
      }
    }
  }

  static void finish(const AttentionTask& task, const SoftmaxState& state) {
    if (task.sinks != nullptr) add_sinks(task, state);
    const int dim = task.head_dim;
    for (int r = 0; r < task.rows; ++r) {
      const int row = task.first_row + r;
      Cache* out = static_cast<Cache*>(task.out) + row / task.group * task.out_stride +
                   static_cast<int64_t>(row % task.group) * dim;
      const float* acc = state.acc + static_cast<int64_t>(r) * task.padded_dim;
      const Floats inverse = Simd::set1(state.sum[r] == 0 ? 0 : 1 / state.sum[r]);
      for (int d = 0; d < dim; d += kLanes) {
        const Floats x = Simd::add(Simd::mul(Simd::load(acc + d), inverse), Simd::set1(0));
        if (d + kLanes <= dim) {
          Simd::store(out + d, x);
        } else {
          Simd::store_n(out + d, x, dim - d);
        }
      }
    }
  }

  // To each row's sum. A sink far above all scores makes it infinite and the row 0.
  static void add_sinks(const AttentionTask& task, const SoftmaxState& state) {
    float exponents[kMaxAttentionRows];
    for (int r = 0; r < task.rows; ++r) {
      exponents[r] = task.sinks[(task.first_row + r) % task.group] * kLog2E - state.max[r];
    }
    for (int r = 0; r < task.rows; r += kLanes) {
      const int n = smaller(kLanes, task.rows - r);
      const Floats e = exp2(Simd::load_n(exponents + r, n));
      Simd::store_n(state.sum + r, Simd::add(Simd::load_n(state.sum + r, n), e), n);
    }
  }

  // Calls fn<N>(first) for pieces of 0 .. count-1, N = kLargest as long as it fits, then less.
  template <int kLargest, typename Fn>
  static void for_each_block(int count, Fn&& fn) {
    int first = 0;
    for (; first + kLargest <= count; first += kLargest) fn.template operator()<kLargest>(first);
    if constexpr (kLargest > 1) {
      if (first < count) for_rest<kLargest - 1>(first, count - first, fn);
    }
  }
  template <int N, typename Fn>
  static void for_rest(int first, int count, Fn&& fn) {
    if (count == N) {
      fn.template operator()<N>(first);
    } else if constexpr (N > 1) {
      for_rest<N - 1>(first, count, fn);
    }
  }

  const AttentionTask& task_;
  float* scores_;        // [rows, 64]
  Operand* weights_;     // [rows, 64]
  float* lane_sums_;     // [rows, 16]
  float* tile_max_;      // [rows]
  float* rescale_;       // [rows]
  float* state_memory_;  // two states
  Operand* q_;           // [rows, head_dim]
};

template <typename Dot>
AttentionKernels make_attention_kernels() {
  return {AttentionKernel<Dot>::attend, AttentionKernel<Dot>::attend_span,
          AttentionKernel<Dot>::combine};
}

template <int kTileRows, int kTileCols>
struct DotOfFloats {
  using Operand = float;
  static constexpr int kRows = kTileRows, kCols = kTileCols;
  static constexpr int kFewRows = kTileRows < 3 ? kTileRows : 3;
  static constexpr int kFewRowsKeyCols = kTileCols, kFewRowsValueCols = kTileCols;
};

// bfloat16 products by way of float: two fused multiply-adds a pair.
template <int kTileRows, int kTileCols>
struct DotExpanded : DotOfFloats<kTileRows, kTileCols> {
  using Cache = uint16_t;
  static constexpr int kDepth = 2;
  struct Vector {
    Floats even, odd;
  };
  using Scalar = Vector;
  static Vector load(const char* p) {
    Vector v;
    Simd::load_pairs(reinterpret_cast<const uint16_t*>(p), &v.even, &v.odd);
    return v;
  }
  static Scalar broadcast(const float* p) { return {Simd::set1(p[0]), Simd::set1(p[1])}; }
  static Floats step(Floats acc, const Scalar& a, const Vector& b) {
    return Simd::fma(a.odd, b.odd, Simd::fma(a.even, b.even, acc));
  }
};

template <int kTileRows, int kTileCols>
struct DotFloat : DotOfFloats<kTileRows, kTileCols> {
  using Cache = float;
  static constexpr int kDepth = 1;
  using Vector = Floats;
  using Scalar = Floats;
  static Vector load(const char* p) { return Simd::load(reinterpret_cast<const float*>(p)); }
  static Scalar broadcast(const float* p) { return Simd::set1(*p); }
  static Floats step(Floats acc, Scalar a, Vector b) { return Simd::fma(a, b, acc); }
};

}  // namespace
}  // namespace nanovllm
