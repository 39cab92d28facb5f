// A block's part in the layer tail's kernel for large layers; see layer_tail_large.cu.
#pragma once

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/layer_tail_large_exchange.cuh"
#include "backend/cuda/layer/layer_tail_ring.cuh"

namespace nanovllm::cuda {

constexpr int kLargeSlots = 12;
constexpr int kLargeRowBytes = kSlotDepth * 2;  // a multiple of 128, as the copy engine wants it
// Tiles of the tensor cores, 16 rows of weights, in one pass: of gate and up, 8 features of each,
// and of another product.
constexpr int kMaxLargeTiles = 12;
constexpr int kMaxNarrowTiles = 6;
constexpr int kLargeUnit = 32;  // elements of K of two tensor core products
constexpr int kLargeWarpDepth = kSlotDepth / kTailWarps;
constexpr int kLargeUnits = kLargeWarpDepth / kLargeUnit;
constexpr int kRowTiles = 64;  // rows times tiles whose sums are added at once
constexpr int kSumPad = 4;     // floats between rows of sums: they share no bank

struct LargeTailShared {
  RingMemory<kLargeSlots, kLargeRowBytes> ring;
  float sums[kTailWarps][kRowTiles * 16 + kTailRows * kSumPad];  // [rows][features] of each warp
  float square_sums[kTailWarps][kTailRows];
};

// One of the warps that compute; all of a block call the same functions. kTiles: the most that a
// pass takes of gate and up.
template <int kTiles>
class LargeTailWarp {
 public:
  // Reads nothing but weights.
  __device__ LargeTailWarp(const LargeTailParams& p, LargeTailShared& shared)
      : p_(p), shared_(shared), ring_(shared.ring), row_(min(lane_ / 4, p.rows - 1)) {
    prefetch(p.norm);
  }

  // After the predecessor.
  __device__ void run() {
    prefetch_residual();
    const LargeExchange exchange(p_);
    take_step<kAttentionStep>(exchange);
    exchange.clear_last();
    take_step<kGateUpStep>(exchange);
    prefetch(p_.next_norm);
    take_step<kMlpStep>(exchange);
    if (p_.num_steps > kNextStep) take_step<kNextStep>(exchange);
    exchange.finish();
  }

 private:
  // A lane's elements of its row, 8 neighbours of each unit: the tensor cores want, of 16 elements
  // of K, two pairs 8 apart, and get the weights in the same order.
  using Operand = uint4[kLargeUnits];

  // What an operand is made of: as it is, or float32 before a norm.
  template <int step>
  static constexpr bool kIsNormed = step == kGateUpStep || step == kNextStep;
  template <int step>
  static constexpr int kParts = kIsNormed<step> ? kLargeUnits * 2 : kLargeUnits;
  template <int step>
  using Source = uint4[kParts<step>];

  __device__ void prefetch(const NormParams& norm) const {
    for (int i = static_cast<int>(threadIdx.x) * 32; i < p_.hidden(); i += kTailWarps * 32 * 32) {
      prefetch_line(norm.weight + i);
    }
  }
  __device__ void prefetch_residual() const {
    const OwnFeatures own(p_, kAttentionStep, 0);
    const int row = warp_, feature = own.first / 32 * 32 + lane_ * 32;  // where a line begins
    if (row < p_.rows && feature < own.first + own.count) {
      prefetch_line(p_.residual + static_cast<int64_t>(row) * p_.hidden() + feature);
    }
  }

  template <int step>
  __device__ void take_step(const LargeExchange& exchange) {
#pragma unroll 1
    for (int pass = 0; pass < p_.products[step].num_passes; ++pass) {
      take_pass<step>(exchange, OwnFeatures(p_, step, pass));
    }
  }

  template <int step>
  __device__ void take_pass(const LargeExchange& exchange, const OwnFeatures& own) {
    if (own.count == 0) return;
    constexpr int kMaxTiles = step == kGateUpStep ? kTiles : kMaxNarrowTiles;
    float sums[kMaxTiles][4] = {};
    float squares = 0;  // of the lane's elements of a residual stream
    multiply<step>(sums, squares, exchange, own.num_slots);
    if constexpr (kIsNormed<step>) store_squares(squares);
    const int tiles_at_once = kRowTiles / p_.rows;
#pragma unroll 1
    for (int tile = 0; tile < own.num_tiles(); tile += tiles_at_once) {
      store_sums(sums, tile, tiles_at_once);
      meet_tail_warps();
      write_outputs<step>(exchange, own, tile, tiles_at_once);
      meet_tail_warps();  // the sums are read until then
    }
  }

  // All of the block's features with this warp's part of the rows. With few tiles, whose weights
  // come quickly, the next elements are on their way meanwhile.
  template <int step, int kMaxTiles>
  __device__ void multiply(float (&sums)[kMaxTiles][4], float& squares,
                           const LargeExchange& exchange, int num_slots) {
    constexpr bool kAhead = step != kGateUpStep;
    const int depth = p_.products[step].depth;
    const int first = warp_ * kLargeWarpDepth, lane_first = lane_ % 4 * 8;
    Source<step> source;
    if (first < depth) load_source<step>(source, exchange, first + lane_first);
#pragma unroll 1
    for (int k = first; k - first < depth; k += kSlotDepth) {
      const int next = k + kSlotDepth;
      Operand x;
      if (k < depth) {
        if (!kAhead && k > first) load_source<step>(source, exchange, k + lane_first);
        await_source<step>(source, exchange, k + lane_first);
        make_operand<step>(x, squares, source, k + lane_first);
        if (kAhead && next < depth) load_source<step>(source, exchange, next + lane_first);
      }
      add_products(sums, x, num_slots, k < depth);
    }
  }

  // Element k and its neighbours, and those of the other units, be they written or not.
  template <int step>
  __device__ void load_source(Source<step>& source, const LargeExchange& exchange, int k) const {
#pragma unroll
    for (int i = 0; i < kParts<step>; ++i) source[i] = load_part<step>(exchange, k, i);
  }
  template <int step>
  __device__ uint4 load_part(const LargeExchange& exchange, int k, int i) const {
    if constexpr (step == kAttentionStep) {
      return __ldcg(reinterpret_cast<const uint4*>(
          p_.attention + static_cast<int64_t>(row_) * p_.products[step].depth + k +
          i * kLargeUnit));
    } else if constexpr (step == kMlpStep) {
      return load_words(exchange.mlp(row_) + (k + i * kLargeUnit) / 2);
    } else {
      return load_words(exchange.residual(row_, step / 2) + k + i / 2 * kLargeUnit + i % 2 * 4);
    }
  }
  // Until all of it is written. Of more than two rows one vector has to be there before the others
  // are asked for again.
  template <int step>
  __device__ void await_source(Source<step>& source, const LargeExchange& exchange, int k) const {
    if constexpr (step == kAttentionStep) return;
    uint32_t largest = 0;
#pragma unroll
    for (const uint4& words : source) largest = max(largest, largest_of(words));
    if (!__any_sync(0xffffffffu, largest == kHole)) return;
    load_written(source, p_.rows > 2, [&](int i) { return load_part<step>(exchange, k, i); });
  }

  // With a norm, but for the rows' scales, which are left for the sums of the products: so no warp
  // waits for the others' squares.
  template <int step>
  __device__ void make_operand(Operand& x, float& squares, const Source<step>& source,
                               int k) const {
#pragma unroll
    for (int i = 0; i < kLargeUnits; ++i) {
      if constexpr (!kIsNormed<step>) {
        x[i] = source[i];
      } else {
        const NormParams& norm = step == kGateUpStep ? p_.norm : p_.next_norm;
        float factor[8];
        load_vector(factor, norm.weight + k + i * kLargeUnit);
        const uint4 &low = source[i * 2], &high = source[i * 2 + 1];
        float values[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),
                           __uint_as_float(low.z),  __uint_as_float(low.w),
                           __uint_as_float(high.x), __uint_as_float(high.y),
                           __uint_as_float(high.z), __uint_as_float(high.w)};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          squares += values[e] * values[e];
          values[e] *= factor[e];
        }
        x[i] = {pack_bfloat16(values[0], values[1]), pack_bfloat16(values[2], values[3]),
                pack_bfloat16(values[4], values[5]), pack_bfloat16(values[6], values[7])};
      }
    }
  }

  // The products of the block's weights of kSlotDepth elements with this warp's part of the rows.
  template <int kMaxTiles>
  __device__ void add_products(float (&sums)[kMaxTiles][4], const Operand& x, int num_slots,
                               bool has_part) {
    const uint32_t offset =
        lane_ / 4 * kLargeRowBytes + (warp_ * kLargeWarpDepth + lane_ % 4 * 8) * 2;
#pragma unroll
    for (int tile = 0; tile < kMaxTiles; ++tile) {
      if (tile * 2 >= num_slots) break;
      const int count = min(2, num_slots - tile * 2);
      const uint32_t low = ring_.take_full() + offset;
      const uint32_t high =
          count == 2 ? ring_.take_full() + offset : low;  // any, its sums are not used
      if (has_part) {
#pragma unroll
        for (int i = 0; i < kLargeUnits; ++i) {
          const uint4 a = load_shared(low + i * kLargeUnit * 2);
          const uint4 b = load_shared(high + i * kLargeUnit * 2);
          mma_bf16(sums[tile], {a.x, b.x, a.y, b.y}, x[i].x, x[i].y);
          mma_bf16(sums[tile], {a.z, b.z, a.w, b.w}, x[i].z, x[i].w);
        }
      }
      ring_.give_back(count);
    }
  }

  // For norm_scale(), once the warps have met.
  __device__ void store_squares(float squares) {
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    if (lane_ % 4 == 0) shared_.square_sums[warp_][lane_ / 4] = squares;
  }

  // Where the sum of a feature of `count` tiles lies.
  __device__ static int place_of(int row, int count, int feature) {
    return row * (count * 16 + kSumPad) + feature;
  }
  // This warp's sums of some tiles.
  template <int kMaxTiles>
  __device__ void store_sums(const float (&sums)[kMaxTiles][4], int first, int count) {
#pragma unroll
    for (int tile = 0; tile < kMaxTiles; ++tile) {
      if (tile < first || tile >= first + count) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = lane_ % 4 * 2 + e % 2;
        const int feature = (tile - first) * 16 + e / 2 * 8 + lane_ / 4;
        if (row < p_.rows) shared_.sums[warp_][place_of(row, count, feature)] = sums[tile][e];
      }
    }
  }
  // The warps' sums of two neighbouring features, in the order of the warps.
  __device__ float2 total(int place) const {
    float2 sum = {0, 0};
#pragma unroll
    for (int warp = 0; warp < kTailWarps; ++warp) {
      const float2 part = *reinterpret_cast<const float2*>(&shared_.sums[warp][place]);
      sum.x += part.x;
      sum.y += part.y;
    }
    return sum;
  }

  // Two neighbouring outputs.
  struct Pair {
    int row, feature, place;
    bool exists;
  };
  // Threads take those of `count` tiles in turn, the same ones in all products with as many
  // features.
  static constexpr int kMaxPairs = kRowTiles * 8 / (kTailWarps * 32);
  template <int step>
  __device__ Pair pair_of(const OwnFeatures& own, int first, int count, int i) const {
    constexpr int kTileFeatures = step == kGateUpStep ? 8 : 16;
    const int pairs = count * kTileFeatures / 2;  // of a row
    const int index = static_cast<int>(threadIdx.x) + i * kTailWarps * 32;
    const int row = index / pairs, local = index % pairs * 2;
    const int feature = first * kTileFeatures + local;
    const int place = place_of(row, count, local / kTileFeatures * 16 + local % kTileFeatures);
    return {row, own.first + feature, place, row < p_.rows && feature < own.count};
  }

  template <int step>
  __device__ void write_outputs(const LargeExchange& exchange, const OwnFeatures& own, int first,
                                int count) const {
    float2 sums[kMaxPairs];
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      const Pair pair = pair_of<step>(own, first, count, i);
      if (!pair.exists) continue;
      sums[i] = total(pair.place);
      if constexpr (step == kGateUpStep) {
        write_mlp(exchange, pair, sums[i], total(pair.place + 8));
      } else if constexpr (step == kNextStep) {
        write_next(pair, sums[i]);
      } else {
        sums[i] = scaled(sums[i], 1, p_.products[step].bias, pair.feature);
        if (p_.group.world_size > 1) exchange.send_part(step / 2, index_of(pair), sums[i]);
      }
    }
    if constexpr (step == kAttentionStep || step == kMlpStep) {
      Patience patience(p_.group);
#pragma unroll
      for (int i = 0; i < kMaxPairs; ++i) {
        const Pair pair = pair_of<step>(own, first, count, i);
        if (!pair.exists) continue;
        if (p_.group.world_size > 1) {
          sums[i] = exchange.receive_sum(step / 2, index_of(pair), sums[i], patience);
        }
        write_residual(exchange, step / 2, pair, sums[i]);
      }
    }
  }

  // Among the pairs of the residual stream.
  __device__ int index_of(const Pair& pair) const {
    return (pair.row * p_.hidden() + pair.feature) / 2;
  }
  __device__ static float2 scaled(float2 sum, float scale, const float* bias, int feature) {
    if (bias == nullptr) return {sum.x * scale, sum.y * scale};
    return {sum.x * scale + bias[feature], sum.y * scale + bias[feature + 1]};
  }

  __device__ void write_residual(const LargeExchange& exchange, int round, const Pair& pair,
                                 float2 sum) const {
    auto* residual = reinterpret_cast<float2*>(p_.residual) + index_of(pair);
    float2 value = __ldcg(residual);  // in the second round this thread's own
    value.x += round_to_bfloat16(sum.x);
    value.y += round_to_bfloat16(sum.y);
    __stcg(residual, value);
    store_two_words(exchange.residual(pair.row, round) + pair.feature,
                    {__float_as_uint(value.x), __float_as_uint(value.y)});
  }

  __device__ void write_mlp(const LargeExchange& exchange, const Pair& pair, float2 gate,
                            float2 up) const {
    const LargeProduct& product = p_.products[kGateUpStep];
    const float scale = norm_scale(p_, shared_, pair.row, p_.norm);
    gate = scaled(gate, scale, product.bias, pair.feature);
    up = scaled(up, scale, product.bias, product.features + pair.feature);
    store_word(exchange.mlp(pair.row) + pair.feature / 2,
               pack_bfloat16(combine(gate.x, up.x), combine(gate.y, up.y)));
  }
  __device__ float combine(float gate, float up) const {
    return gate_and_mul(p_.activation, round_to_bfloat16(gate), round_to_bfloat16(up));
  }

  __device__ void write_next(const Pair& pair, float2 sum) const {
    const LargeProduct& product = p_.products[kNextStep];
    const float2 y =
        scaled(sum, norm_scale(p_, shared_, pair.row, p_.next_norm), product.bias, pair.feature);
    auto* out = p_.out + static_cast<int64_t>(pair.row) * product.features + pair.feature;
    *reinterpret_cast<uint32_t*>(out) = pack_bfloat16(y.x, y.y);
  }

  const LargeTailParams& p_;
  LargeTailShared& shared_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  RingWalk<kLargeSlots, kLargeRowBytes> ring_;
  const int row_;  // that the lane has elements of; any for those behind the last
};

}  // namespace nanovllm::cuda
