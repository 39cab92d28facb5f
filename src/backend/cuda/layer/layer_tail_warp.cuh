// A warp's part in the layer tail's products; see layer_tail.cu. The warps share K: of each
// kSlotDepth elements a warp takes kWarpDepth neighbours.
#pragma once

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/layer_tail_plan.cuh"

namespace nanovllm::cuda {

// Most of what a block of Qwen3-0.6B has, 15 slots; more would leave no room for an attention's
// blocks.
constexpr int kTailSlots = 10;
constexpr int kTailUnit = 32;  // elements of K
constexpr int kTailUnits = kSlotDepth / kTailUnit / kTailWarps;
constexpr int kWarpDepth = kTailUnits * kTailUnit;  // elements of K, of a slot
constexpr int kMaxTailChunks = 3;                   // of kSlotDepth elements of K
constexpr int kMaxTiles = 4;                        // of 16 features, a block's
constexpr int kMaxHalfTiles = 2;                    // of 8 features, likewise

// Of a warp.
struct TailScratch {
  // The sums of a block's features. Two rows are 8 banks apart, modulo 32.
  float half_tile_sums[kTailRows][kMaxHalfTiles * 8 + 4];
  union {
    float tile_sums[kTailRows][kMaxTiles * 16 + 4];
    // The rows' elements of this warp; rows are 16 bytes apart in the banks.
    __nv_bfloat16 rows[kTailRows][kWarpDepth + 8];
  };
};

struct TailShared {
  RingMemory<kTailSlots, slot_row_bytes(1)> ring;
  TailScratch scratch[kTailWarps];
  float square_sums[kTailWarps][kTailRows];
};

// All warps of a block but the one that streams the weights call the same functions. kRows: as many
// rows as there are, rounded up to a power of two.
template <Activation kActivation, int kRows>
class TailWarp {
 public:
  // Reads nothing but weights.
  __device__ TailWarp(const TailParams& p, TailShared& shared)
      : p_(p),
        shared_(shared),
        scratch_(shared.scratch[warp_]),
        ring_(shared.ring),
        hidden_tiles_(tiles_of_block(p, kAttentionStep)),
        hidden_place_(place_of(hidden_tiles_, kAttentionStep, 1)) {
    for (const NormParams* norm : {&p.norm, &p.next_norm}) {
      if (first_element() < hidden()) prefetch_line(norm->weight + first_element());
    }
  }

  // After the predecessor. In two rounds, so that the second finds its instructions in the cache.
  // The warps of a block meet twice a round, before they add up their sums, be there features or
  // not: the next sums may take the place of these only behind that.
  __device__ void run() {
    NarrowOperand x;
    load_attention(x);
    float* residual = p_.residual + hidden_place_.row * hidden() + hidden_place_.feature;
    float own = 0;  // element of the residual stream, one of its block's features
    if (hidden_place_.exists) own = __ldcg(residual);
    const TailExchange exchange(*p_.memory);
    TailRow* rows = exchange.rows();
    ring_.wait_for(hidden_tiles_.count * slot_depths(p_.products[kAttentionStep].depth));
#pragma unroll 1
    for (int round = 0;; ++round) {
      if (hidden_tiles_.count > 0) {
        multiply_narrow(x, p_.products[round * 2].depth);
        if (hidden_place_.exists) {
          own += rounded_total(p_.products[round * 2]);
          store_word(&rows[hidden_place_.row].residual[round][hidden_place_.feature],
                     __float_as_uint(own));
          if (round == 1) *residual = own;
        }
      } else {
        meet_tail_warps();
      }
      if (round == 0) exchange.clear_last();
      if (round == 0 || p_.products[kNextStep].weight != nullptr) {
        multiply_norm(rows, round);
      } else if (blockIdx.x == 0) {
        write_norm(rows);
      }
      if (round == 1) break;
      ring_.wait_for(hidden_tiles_.count * slot_depths(p_.products[kMlpStep].depth));
      load_mlp(x, rows);
    }
    exchange.finish(p_.rows);
  }

 private:
  // A lane's elements of the rows. The tensor cores want, of 16 elements of K, two pairs 8 apart;
  // narrow operands hold 8 neighbours of each unit instead, and so do the weights with them.
  using NarrowOperand = uint4[kMaxTailChunks * kTailUnits];
  using WideOperand = uint32_t[kTailUnits][4];
  using WideTile = uint32_t[kTailUnits * 2][4];
  // Many rows are polled with care.
  static constexpr bool kProbes = kRows > 2;

  // What a thread writes: of a row, `width` neighbouring features.
  struct Place {
    int row, feature, local;  // the feature among all, and among the block's
    bool exists;
  };
  __device__ Place place_of(const TailTiles& tiles, int step, int width) const {
    const int tile_features = tile_features_of(step);
    const int per_row = max(1, tiles.count * tile_features / width);
    const int row = static_cast<int>(threadIdx.x) / per_row;
    const int local = (static_cast<int>(threadIdx.x) - row * per_row) * width;
    const int feature = tiles.first * tile_features + local;
    return {row, feature, local, row < p_.rows && feature < p_.products[step].features};
  }

  __device__ static int slot_depths(int depth) { return (depth + kSlotDepth - 1) / kSlotDepth; }

  // The row of which a lane holds elements, in the tensor cores' operand; any for those behind the
  // last, whose sums are not used.
  __device__ int operand_row() const { return min(lane_ / 4, p_.rows - 1); }
  // Slots in which this warp has a part.
  __device__ int own_chunks(int depth) const {
    return (depth + kSlotDepth - 1 - warp_ * kWarpDepth) / kSlotDepth;
  }

  __device__ void load_attention(NarrowOperand& x) const {
    const int depth = p_.products[kAttentionStep].depth, chunks = own_chunks(depth);
    const auto* source = reinterpret_cast<const uint4*>(p_.attention + operand_row() * depth +
                                                        warp_ * kWarpDepth + lane_ % 4 * 8);
#pragma unroll
    for (int i = 0; i < kMaxTailChunks * kTailUnits; ++i) {
      if (i / kTailUnits < chunks) x[i] = __ldcg(source + vector_of(i));
    }
  }
  __device__ void load_mlp(NarrowOperand& x, const TailRow* rows) const {
    const int chunks = own_chunks(p_.products[kMlpStep].depth);
    const uint32_t* source = rows[operand_row()].mlp + (warp_ * kWarpDepth + lane_ % 4 * 8) / 2;
    load_written(x, true, [&](int i) {
      return i / kTailUnits < chunks ? load_words(source + vector_of(i) * 4) : uint4{0, 0, 0, 0};
    });
  }
  // Of 8 elements.
  __device__ static constexpr int vector_of(int i) {
    return (i / kTailUnits * kSlotDepth + i % kTailUnits * kTailUnit) / 8;
  }

  // norm(residual) W^T: gate and up with the activation, or the next layer's projection.
  __device__ void multiply_norm(TailRow* rows, int round) {
    const int step = round * 2 + 1;
    const TailTiles tiles = tiles_of_block(p_, step);
    if (tiles.count == 0) return meet_tail_warps();
    const TailProduct& product = p_.products[step];
    const Place place = place_of(tiles, step, 2);
    const bool is_gate_up = step == kGateUpStep;
    WideOperand x;
    WideTile weights;
    ring_.wait_for(tiles.count * 2);
    load_tile(weights);
    scale_rows(x, rows, round);
    multiply_wide(x, weights, tiles.count);
    if (!place.exists) return;
    const float scale = norm_scale(p_, shared_, place.row, is_gate_up ? p_.norm : p_.next_norm);
    if (is_gate_up) {
      const int local = place.local / 8 * 16 + place.local % 8;
      const float2 gate = total(place.row, local, scale, product.bias, place.feature);
      const float2 up =
          total(place.row, local + 8, scale, product.bias, product.features + place.feature);
      store_word(&rows[place.row].mlp[place.feature / 2],
                 pack_bfloat16(combine(gate.x, up.x), combine(gate.y, up.y)));
    } else {
      const float2 y = total(place.row, place.local, scale, product.bias, place.feature);
      auto* out = p_.out + static_cast<int64_t>(place.row) * product.features + place.feature;
      *reinterpret_cast<uint32_t*>(out) = pack_bfloat16(y.x, y.y);
    }
  }

  __device__ static float combine(float gate, float up) {
    return gate_and_mul<kActivation>(round_to_bfloat16(gate), round_to_bfloat16(up));
  }

  // By one block.
  __device__ void write_norm(const TailRow* rows) {
    float values[kRows][4], factor[4];
    load_factors(factor, p_.next_norm);
    load_rows(values, rows, 1);
    add_squares(values);
    meet_tail_warps();
    const float own_scale = norm_scale(p_, shared_, lane_ % kTailRows, p_.next_norm);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float scale = __shfl_sync(0xffffffffu, own_scale, row);
      if (row >= p_.rows || first_element() >= hidden()) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) values[row][e] *= scale * factor[e];
      store_vector(p_.out + row * hidden() + first_element(), values[row]);
    }
  }

  // Four neighbouring elements of all rows are a lane's where norms are taken; none of the warps
  // behind the last.
  __device__ int first_element() const { return warp_ * kWarpDepth + lane_ * 4; }
  // Anything for warps behind the last, whose elements are not used.
  __device__ void load_factors(float (&factor)[4], const NormParams& norm) const {
    if (first_element() < hidden()) load_vector(factor, norm.weight + first_element());
  }

  // Elements of rows that are being written.
  __device__ void load_rows(float (&values)[kRows][4], const TailRow* rows, int round) const {
    uint4 words[kRows];
    const bool is_inside = first_element() < hidden();
    const uint32_t* source = rows->residual[round] + first_element();
    load_written(words, kProbes, [&](int row) {
      constexpr int kStride = sizeof(TailRow) / sizeof(uint32_t);
      return row < p_.rows && is_inside ? load_words(source + row * kStride) : uint4{0, 0, 0, 0};
    });
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      values[row][0] = __uint_as_float(words[row].x);
      values[row][1] = __uint_as_float(words[row].y);
      values[row][2] = __uint_as_float(words[row].z);
      values[row][3] = __uint_as_float(words[row].w);
    }
  }

  // The sums of the rows' squares over this warp's elements, for the block: lanes that have added
  // up half of the rows each ask others for the rest.
  __device__ void add_squares(const float (&values)[kRows][4]) {
    float sums[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float* v = values[row];
      sums[row] = (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
    }
    constexpr int kLanes = 32 / kRows;  // that end with the same row
#pragma unroll
    for (int count = kRows / 2; count > 0; count /= 2) {
      const bool is_upper = lane_ / kLanes & count;
#pragma unroll
      for (int row = 0; row < count; ++row) {
        const float given = is_upper ? sums[row] : sums[row + count];
        const float kept = is_upper ? sums[row + count] : sums[row];
        sums[row] = kept + __shfl_xor_sync(0xffffffffu, given, count * kLanes);
      }
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], step);
    }
    if (lane_ % kLanes == 0) shared_.square_sums[warp_][lane_ / kLanes] = sums[0];
  }

  // The norm of rows that are being written but for the rows' scales, which are left for the sums
  // of the products: so no warp waits for the others' squares.
  __device__ void scale_rows(WideOperand& x, const TailRow* rows, int round) {
    float values[kRows][4], factor[4];
    load_factors(factor, round == 0 ? p_.norm : p_.next_norm);
    load_rows(values, rows, round);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float scaled[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) scaled[e] = values[row][e] * factor[e];
      store_vector(&scratch_.rows[row][lane_ * 4], scaled);
    }
    __syncwarp();
    // A row and a column of 8 elements that a lane names.
    const uint32_t source = shared_address(&scratch_.rows[lane_ % 8][lane_ / 8 * 8]);
#pragma unroll
    for (int unit = 0; unit < kTailUnits; ++unit) {
      load_matrices(x[unit], source + unit * kTailUnit * 2);
    }
    add_squares(values);
    __syncwarp();  // the sums take the rows' place
  }

  // The products of a block's half tiles with this warp's part of the rows; all warps' sums are
  // there on return.
  __device__ void multiply_narrow(const NarrowOperand& x, int depth) {
    const uint32_t lane_offset = offset_in_row() + lane_ / 4 * slot_row_bytes(1) + lane_ % 4 * 16;
    const int num_chunks = slot_depths(depth), chunks = own_chunks(depth);
#pragma unroll 1
    for (int tile = 0; tile < hidden_tiles_.count; ++tile) {
      float sums[4][4] = {};  // several, so that products need not wait for each other
#pragma unroll
      for (int chunk = 0; chunk < kMaxTailChunks; ++chunk) {
        if (chunk >= num_chunks) break;
        const uint32_t slot = ring_.take() + lane_offset;
        if (chunk >= chunks) continue;
#pragma unroll
        for (int i = 0; i < kTailUnits; ++i) {
          const uint4& b = x[chunk * kTailUnits + i];
          const uint4 a = load_shared(slot + i * kTailUnit * 2);
          mma_bf16(sums[i % 2 * 2], {a.x, 0, a.y, 0}, b.x, b.y);
          mma_bf16(sums[i % 2 * 2 + 1], {a.z, 0, a.w, 0}, b.z, b.w);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = lane_ % 4 * 2 + e;
        if (row >= kRows) continue;
        scratch_.half_tile_sums[row][tile * 8 + lane_ / 4] =
            (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
      }
    }
    ring_.give_back(hidden_tiles_.count * num_chunks);
    meet_tail_warps();
  }

  // This warp's part of a tile's weights.
  __device__ void load_tile(WideTile& weights) {
    const uint32_t low = ring_.take(), high = ring_.take();
    const uint32_t slot = (lane_ / 8 % 2 == 0 ? low : high) + offset_in_row() +
                          lane_ % 8 * slot_row_bytes(2) + lane_ / 16 * 16;
#pragma unroll
    for (int i = 0; i < kTailUnits * 2; ++i) load_matrices(weights[i], slot + i * kTailUnit);
  }

  // Likewise of whole tiles; `weights` are those of the first.
  __device__ void multiply_wide(const WideOperand& x, WideTile& weights, int num_tiles) {
    const bool has_part = first_element() < hidden();
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      float sums[4][4] = {};
      if (has_part) {
#pragma unroll
        for (int i = 0; i < kTailUnits * 2; ++i) {
          mma_bf16(sums[i % 4], weights[i], x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
        }
      }
      if (tile + 1 < num_tiles) load_tile(weights);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = lane_ % 4 * 2 + e % 2;
        if (row >= kRows) continue;
        scratch_.tile_sums[row][tile * 16 + e / 2 * 8 + lane_ / 4] =
            (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
      }
    }
    ring_.give_back(num_tiles * 2);
    meet_tail_warps();
  }
  // This warp's part of a row of a slot begins there, in bytes.
  __device__ uint32_t offset_in_row() const { return warp_ * kWarpDepth * 2; }

  // The warps' sums of two neighbouring features, in the order of the warps, times `scale`, plus
  // the bias.
  __device__ float2 total(int row, int local, float scale, const float* bias, int feature) const {
    float2 sum = {0, 0};
#pragma unroll
    for (const TailScratch& scratch : shared_.scratch) {
      const float2 part = *reinterpret_cast<const float2*>(&scratch.tile_sums[row][local]);
      sum.x += part.x;
      sum.y += part.y;
    }
    const float2 added = bias != nullptr ? float2{bias[feature], bias[feature + 1]} : float2{0, 0};
    return {sum.x * scale + added.x, sum.y * scale + added.y};
  }

  // The rounded sum of a thread's feature of the residual stream, with its bias.
  __device__ float rounded_total(const TailProduct& product) const {
    float sum = 0;
#pragma unroll
    for (const TailScratch& scratch : shared_.scratch) {
      sum += scratch.half_tile_sums[hidden_place_.row][hidden_place_.local];
    }
    if (product.bias != nullptr) sum += product.bias[hidden_place_.feature];
    return round_to_bfloat16(sum);
  }

  __device__ int hidden() const { return p_.products[kGateUpStep].depth; }

  const TailParams& p_;
  TailShared& shared_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const int warp_ = static_cast<int>(threadIdx.x) / 32;
  TailScratch& scratch_;
  RingWalk<kTailSlots, slot_row_bytes(1)> ring_;
  const TailTiles hidden_tiles_;  // of the residual stream
  const Place hidden_place_;      // likewise
};

}  // namespace nanovllm::cuda
