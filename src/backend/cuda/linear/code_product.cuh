// Products with weights in codes, bound by the bytes of the codes where rows are few:
// y[R,N] = x[R,K] W[N,K]^T + bias.
//
// The weights are the left operand of the tensor cores, so that a lane finds the codes of its part
// of a tile in one piece, decodes them in registers, and up to 8 rows of x waste nothing. Codes are
// exact in bfloat16; the products of a group of columns are added up in float32, and the sum is
// scaled once. An offset is multiplied by the sum of the group's activations, which a further
// product with ones gives.
//
// A block computes 128 features of up to 64 rows. Each step brings 256 columns to shared memory,
// asynchronously: codes as they lie in memory, and rows; a ring has several steps. Of a step each
// warp has two tiles of features and half of the columns, so that rows are read from shared memory
// once for two tiles. The first codes are under way before the kernel waits for its predecessor
// (weights depend on nothing). Where there are few features, the blocks of a cluster share K and
// read each other's sums in the end. How K is divided depends on the weight alone, and so does the
// order of a row's sums.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/linear/code_fragments.cuh"
#include "backend/cuda/linear/code_kinds.h"
#include "backend/cuda/linear/code_scaling.cuh"

namespace nanovllm::cuda {

constexpr int kCodeWarps = 8, kCodeThreads = kCodeWarps * 32;

// Which rows and features a block computes.
struct CodeItem {
  RowTile rows = {};
  int panel = 0;
  int rank = 0;  // of its cluster
};

// Of a dense product blocks of one panel of features are neighbours, so that its codes are read
// once; of experts those of one tile of rows.
__device__ inline CodeItem item_of_block(const CodeProduct& p, int block_rows) {
  CodeItem item;
  item.rank = static_cast<int>(blockIdx.x);
  const int y = static_cast<int>(blockIdx.y), z = static_cast<int>(blockIdx.z);
  if (p.tiles == nullptr) {
    item.panel = z;
    item.rows = {0, y * block_rows, min(block_rows, p.rows - y * block_rows)};
  } else {
    item.panel = y;
    if (z < *p.num_tiles) item.rows = p.tiles[z];
  }
  return item;
}

// Which tile of a weight a block's slot has, or -1.
__device__ inline int tile_of_slot(const CodeProduct& p, int panel, int slot) {
  const int tile = panel * kPanelTiles + slot;
  return tile * kTileRows < p.features ? tile : -1;
}

// The stream of a block's codes and rows: of a step each warp copies a tile's codes, and all of
// them the rows.
template <int kRowSets>
class CodeStream {
 public:
  __device__ CodeStream(const CodeProduct& p, const CodePlan& plan, const CodeItem& item,
                        char* ring)
      : p_(p), plan_(plan), target_(shared_address(ring)), end_(target_ + ring_bytes(plan)) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int first_block = item.rank * plan.steps;
    num_steps_ = max(0, min(plan.steps, p.shape.num_blocks - first_block));
    const int tile = tile_of_slot(p, item.panel, warp);
    const int64_t before = int64_t{first_block} * p.shape.block_bytes;
    if (tile >= 0 && num_steps_ > 0) {
      const int64_t first_tile = int64_t{item.rows.expert} * (p.features / kTileRows);
      source_ = static_cast<const char*>(p.codes) + (first_tile + tile) * p.shape.tile_bytes +
                before + lane * 16;
      bytes_left_ = p.shape.tile_bytes - before;
    }
    column_ = first_block * kBlockColumns + lane * 8;
    code_offset_ = warp * p.shape.block_bytes + lane * 16;
    row_offset_ = plan.x_offset + warp * kXStride + lane * 16;
  }

  __device__ int num_steps() const { return num_steps_; }

  // Which rows of x are a lane's, once that is known.
  __device__ void find_rows(const RowTile& rows) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int i = 0; i < kRowSets; ++i) {
      const int row = i * 8 + warp;
      rows_[i] = -1;
      if (row >= rows.num_rows) continue;
      rows_[i] = rows.first_row + row;
      if (p_.tokens != nullptr) rows_[i] = p_.tokens[rows_[i]];
    }
  }

  // Of the next step.
  __device__ void copy_codes(uint32_t stage) {
    const int bytes = static_cast<int>(min(int64_t{p_.shape.block_bytes}, bytes_left_));
    const int lane_bytes = static_cast<int>(threadIdx.x) % 32 * 16;
#pragma unroll 4
    for (int i = 0; i + lane_bytes < bytes; i += 32 * 16) {
      copy_async(stage + code_offset_ + i, source_ + i, true);
    }
    source_ += p_.shape.block_bytes;
    bytes_left_ -= bytes;
  }

  __device__ void copy_rows(uint32_t stage) {
    const bool is_inside = column_ < p_.shape.in_features;
    const auto* const x = static_cast<const __nv_bfloat16*>(p_.x);
#pragma unroll
    for (int i = 0; i < kRowSets; ++i) {
      const bool exists = is_inside && rows_[i] >= 0;
      copy_async(stage + row_offset_ + i * 8 * kXStride,
                 exists ? x + int64_t{rows_[i]} * p_.shape.in_features + column_ : x, exists);
    }
    column_ += kBlockColumns;
  }

  // The stage behind one.
  __device__ uint32_t next(uint32_t stage) const {
    const uint32_t next = stage + plan_.stage_bytes;
    return next == end_ ? target_ : next;
  }
  __device__ uint32_t first() const { return target_; }

 private:
  __device__ static int ring_bytes(const CodePlan& plan) { return plan.stages * plan.stage_bytes; }

  const CodeProduct& p_;
  const CodePlan& plan_;
  const uint32_t target_, end_;
  const char* source_ = nullptr;
  int64_t bytes_left_ = 0;
  int num_steps_, column_, code_offset_, row_offset_;
  int rows_[kRowSets];
};

// Until the copies of all but the `stages` - 2 last groups are there.
__device__ inline void wait_for_stage(int stages) {
  static_assert(kMaxCodeStages == 4);
  if (stages == 4) {
    wait_for_copies<2>();
  } else if (stages == 3) {
    wait_for_copies<1>();
  } else {
    wait_for_copies<0>();
  }
}

// A warp's two tiles of features and share of K of a step: their scales, as numbers, in the order
// in which they are used. Of entry i both rows of lane / 4 = r stand at [tile][i][r].
template <CodeKind kKind, Scaling kScaling, int kSteps>
struct PreparedScales {
  static constexpr int kEntries = kBlockColumns / kSharesOfK / 16 / kSteps;
  static constexpr int kPairs = 2 * kEntries * 8;

  float2 scales[2][kEntries][8];
  uint2 offsets[2][kEntries][8];  // of kTaken words of two bfloat16, else float32

  // By a warp, of its share.
  __device__ void prepare(const CodeShape& shape, const char* codes, int share) {
    for (int i = static_cast<int>(threadIdx.x) % 32; i < kPairs; i += 32) {
      const int r = i % 8, entry = i / 8 % kEntries, tile = i / 8 / kEntries;
      const PairOfScales got = load_scales(shape, codes + tile * shape.block_bytes,
                                           (share * kEntries + entry) * kSteps * 16, r);
      scales[tile][entry][r] = {got.scale.x, got.scale.y * upper_unit(kKind)};
      if constexpr (kScaling == Scaling::kTaken) {
        offsets[tile][entry][r] = added_to_codes<kKind>(shape, got.offset);
      }
      if constexpr (kScaling == Scaling::kAdded) {
        const bool is_scaled = shape.offsets == OffsetKind::kScaledTaken;
        const float2 added = {is_scaled ? -got.scale.x * got.offset.x : got.offset.x,
                              is_scaled ? -got.scale.y * got.offset.y : got.offset.y};
        offsets[tile][entry][r] = {__float_as_uint(added.x), __float_as_uint(added.y)};
      }
    }
    __syncwarp();
  }
};

// Sums of a warp's two tiles of features and kRowSets sets of 8 rows, as mma.cuh has them.
template <CodeKind kKind, int kRowSets>
class CodeSums {
 public:
  __device__ CodeSums(const CodeShape& shape, const uint32_t* pair_table, char* prepared)
      : shape_(shape), prepared_(prepared) {
    values_.pairs = pair_table + threadIdx.x % kTableCopies;
    const uint2 added = added_to_codes<kKind>(shape, {0, 0});
    values_.added[0] = added.x;
    values_.added[1] = added.y;
  }

  // A step: `codes` are the block of the first tile, x the rows.
  __device__ void add_block(const char* codes, const char* x, int units, int scaled_steps) {
    if constexpr (kKind == CodeKind::kInt8 || kKind == CodeKind::kE4M3) {
      if (shape_.is_row_scaled) return add_units<Scaling::kNone, 4>(codes, x, units);
    }
    if constexpr (kKind == CodeKind::k4 || kKind == CodeKind::k5 || kKind == CodeKind::kInt8) {
      const bool adds =
          shape_.offsets == OffsetKind::kAdded || shape_.offsets == OffsetKind::kScaledTaken;
      if (adds) return add_by_steps<Scaling::kAdded>(codes, x, units, scaled_steps);
    }
    if constexpr (kKind == CodeKind::k4) {
      if (shape_.offsets == OffsetKind::kTaken) {
        return add_by_steps<Scaling::kTaken>(codes, x, units, scaled_steps);
      }
    }
    add_by_steps<Scaling::kScale>(codes, x, units, scaled_steps);
  }

  // To sums[kSharesOfK][8 kRowSets][kSumStride].
  __device__ void store(float* sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const target = sums + share() * 8 * kRowSets * kSumStride + lane % 4 * 2 * kSumStride +
                          first_slot() * kTileRows + lane / 4;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int set = 0; set < kRowSets; ++set) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          target[(set * 8 + e % 2) * kSumStride + tile * kTileRows + e / 2 * 8] =
              sums_[tile][set][e];
        }
      }
    }
  }

  __device__ static int first_slot() { return static_cast<int>(threadIdx.x) / 32 % 4 * 2; }

 private:
  static constexpr int kShareUnits = kBlockUnits / kSharesOfK;
  __device__ static int share() { return static_cast<int>(threadIdx.x) / 128; }

  template <Scaling kScaling>
  __device__ void add_by_steps(const char* codes, const char* x, int units, int scaled_steps) {
    if (scaled_steps == 4) {
      add_units<kScaling, 4>(codes, x, units);
    } else if (scaled_steps == 2) {
      add_units<kScaling, 2>(codes, x, units);
    } else {
      add_units<kScaling, 1>(codes, x, units);
    }
  }

  template <Scaling kScaling, int kSteps>
  __device__ void add_units(const char* codes, const char* x, int units) {
    using Prepared = PreparedScales<kKind, kScaling, kSteps>;
    auto& prepared =
        reinterpret_cast<Prepared*>(prepared_)[kScaling == Scaling::kNone ? 0 : threadIdx.x / 32];
    if constexpr (kScaling != Scaling::kNone) prepared.prepare(shape_, codes, share());
#pragma unroll
    for (int i = 0; i < kShareUnits; ++i) {
      const int unit = share() * kShareUnits + i;
      if (unit >= units) return;
#pragma unroll
      for (int step = 0; step < kUnitSteps; step += kSteps) {
        add_group<kScaling, kSteps>(codes, x, unit, step, prepared,
                                    (i * kUnitSteps + step) / kSteps);
      }
    }
  }

  // kSteps steps of one group.
  template <Scaling kScaling, int kSteps>
  __device__ void add_group(const char* codes, const char* x, int unit, int step,
                            const PreparedScales<kKind, kScaling, kSteps>& prepared, int entry) {
    const int r = static_cast<int>(threadIdx.x) % 32 / 4;
    uint32_t rows[kRowSets][kSteps][2];
    load_rows<kSteps>(rows, x, unit * kUnitSteps + step);
    float row_sums[kRowSets][4];
    if constexpr (kScaling == Scaling::kAdded) add_up_rows<kSteps>(row_sums, rows);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      float2 scale = {1, 1};
      uint2 offset = {};
      if constexpr (kScaling != Scaling::kNone) scale = prepared.scales[tile][entry][r];
      if constexpr (kScaling == Scaling::kTaken || kScaling == Scaling::kAdded) {
        offset = prepared.offsets[tile][entry][r];
      }
      CodeValues values = values_;
      if constexpr (kScaling == Scaling::kTaken) {
        values.added[0] = offset.x;
        values.added[1] = offset.y;
      }
      uint32_t a[kSteps][4];
      const char* const block = codes + tile * shape_.block_bytes;
      load_codes<kKind, kSteps>(a, block + shape_.header_bytes + unit * unit_bytes_of(kKind), step,
                                values);
#pragma unroll
      for (int set = 0; set < kRowSets; ++set) {
        float(&sum)[4] = sums_[tile][set];
        if constexpr (kScaling == Scaling::kNone) {
#pragma unroll
          for (int s = 0; s < kSteps; ++s) mma_bf16(sum, a[s], rows[set][s][0], rows[set][s][1]);
          continue;
        }
        float y[4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) mma_bf16(y, a[s], rows[set][s][0], rows[set][s][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = fmaf(e < 2 ? scale.x : scale.y, y[e], sum[e]);
        if constexpr (kScaling == Scaling::kAdded) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sum[e] = fmaf(__uint_as_float(e < 2 ? offset.x : offset.y), row_sums[set][e], sum[e]);
          }
        }
      }
    }
  }

  // The right operands of kSteps steps.
  template <int kSteps>
  __device__ static void load_rows(uint32_t (&rows)[kRowSets][kSteps][2], const char* x, int step) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Of four matrices of 8 rows and 8 columns lane l has row l % 8 of matrix l / 8.
    const uint32_t at = shared_address(x) + lane % 8 * kXStride + step * 32 + lane / 8 * 16;
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      const uint32_t row = at + set * 8 * kXStride;
      if constexpr (kSteps == 1) {
        load_two_matrices(rows[set][0], row - lane / 16 * 32);
      } else {
#pragma unroll
        for (int s = 0; s < kSteps; s += 2) {
          uint32_t four[4];
          load_matrices(four, row + s * 32);
          rows[set][s][0] = four[0];
          rows[set][s][1] = four[1];
          rows[set][s + 1][0] = four[2];
          rows[set][s + 1][1] = four[3];
        }
      }
    }
  }

  // The sums of the activations of kSteps steps, in each of the sums' rows.
  template <int kSteps>
  __device__ static void add_up_rows(float (&row_sums)[kRowSets][4],
                                     const uint32_t (&rows)[kRowSets][kSteps][2]) {
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
#pragma unroll
      for (float& sum : row_sums[set]) sum = 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        mma_bf16(row_sums[set], ones, rows[set][s][0], rows[set][s][1]);
      }
    }
  }

  const CodeShape& shape_;
  char* const prepared_;
  CodeValues values_;
  float sums_[2][kRowSets][4] = {};
};

// The blocks that share K wait for each other; a block alone for its threads.
__device__ inline void meet_cluster(int split) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (split > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

// A block's sums of a row and a feature, its shares of K in order.
__device__ inline float sum_of_shares(const float* sums, int block_rows, int row, int feature) {
  const float* const at = sums + row * kSumStride + feature;
  static_assert(kSharesOfK == 2);
  return at[0] + at[block_rows * kSumStride];
}

// The sums of all blocks of the cluster, in their order.
__device__ inline float sum_of_cluster(float* sums, int block_rows, int row, int feature,
                                       int split) {
  if (split == 1) return sum_of_shares(sums, block_rows, row, feature);
  float total = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  for (int rank = 0; rank < split; ++rank) {
    total += sum_of_shares(cluster.map_shared_rank(sums, rank), block_rows, row, feature);
  }
#endif
  return total;
}

// What becomes of a block's sums: this rank's share of its features.
__device__ inline void finish_block(const CodeProduct& p, const CodePlan& plan,
                                    const CodeItem& item, float* sums, int block_rows) {
  const int64_t weight = int64_t{item.rows.expert} * p.features;
  const auto sum = [&](int row, int in_panel) {
    return sum_of_cluster(sums, block_rows, row, in_panel, plan.split);
  };
  const int outputs = p.is_gated ? kPanelFeatures / 2 : kPanelFeatures;
  const int width = p.is_gated ? p.features / 2 : p.features;
  const int share = outputs / plan.split;
  for (int i = static_cast<int>(threadIdx.x); i < item.rows.num_rows * share; i += kCodeThreads) {
    const int row = i / share, in_panel = item.rank * share + i % share;
    const int feature = item.panel * outputs + in_panel;
    if (feature >= width) continue;
    float y;
    if (p.is_gated) {
      const int gate = in_panel / 8 * kTileRows + in_panel % 8;
      y = gated_output(p, weight, feature / 8, feature % 8, sum(row, gate), sum(row, gate + 8));
    } else {
      y = scaled_output(p, weight, feature, feature, sum(row, in_panel));
    }
    store_output(p, row, feature, item.rows.first_row, y);
  }
}

template <CodeKind kKind, int kRowSets>
__global__ void __launch_bounds__(kCodeThreads, kRowSets > 4 ? 1 : 2)
    code_product_kernel(const __grid_constant__ CodeProduct p,
                        const __grid_constant__ CodePlan plan) {
  extern __shared__ uint4 memory[];
  constexpr int kRows = kRowSets * 8;
  auto* const pair_table = reinterpret_cast<uint32_t*>(memory);
  char* const ring = reinterpret_cast<char*>(memory) + plan.ring_offset;
  if (p.tiles != nullptr) wait_for_predecessor();
  release_successor();
  const CodeItem item = item_of_block(p, kRows);
  if (item.rows.num_rows == 0) return;  // an expert's tile that there is not
  CodeStream<kRowSets> stream(p, plan, item, ring);
  const int steps = stream.num_steps(), ahead = min(plan.stages - 1, steps);
  uint32_t filled = stream.first();
  for (int i = 0; i < ahead; ++i) {
    stream.copy_codes(filled);
    filled = stream.next(filled);
  }
  commit_copies();
  if constexpr (kKind == CodeKind::kTable4) fill_pair_table(p.shape, pair_table);
  if (p.tiles == nullptr) wait_for_predecessor();
  stream.find_rows(item.rows);
  filled = stream.first();
  for (int i = 0; i < plan.stages - 1; ++i) {
    if (i < ahead) stream.copy_rows(filled);
    filled = stream.next(filled);
    commit_copies();
  }

  CodeSums<kKind, kRowSets> sums(p.shape, pair_table,
                                 reinterpret_cast<char*>(memory) + plan.prepared_offset);
  const char* const ring_end = ring + plan.stages * plan.stage_bytes;
  const char* stage = ring;
  int units = p.shape.num_units - item.rank * plan.steps * kBlockUnits;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_stage(plan.stages);
    __syncthreads();  // the stage is there for all, and the one before is used up
    if (step + ahead < steps) {
      stream.copy_codes(filled);
      stream.copy_rows(filled);
      filled = stream.next(filled);
    }
    commit_copies();
    sums.add_block(stage + sums.first_slot() * p.shape.block_bytes, stage + plan.x_offset, units,
                   plan.scaled_steps);
    units -= kBlockUnits;
    stage += plan.stage_bytes;
    if (stage == ring_end) stage = ring;
  }
  wait_for_copies<0>();
  __syncthreads();
  auto* const staged = reinterpret_cast<float*>(ring);
  sums.store(staged);
  meet_cluster(plan.split);
  finish_block(p, plan, item, staged, kRows);
  if (plan.split > 1) meet_cluster(plan.split);  // sums are read until then
}

template <CodeKind kKind>
void launch_product_kind(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan) {
  const dim3 grid = p.tiles == nullptr ? dim3(plan.split, plan.row_tiles, plan.panels)
                                       : dim3(1, plan.panels, plan.row_tiles);
  with_constant<1, 2, 4, 8>(plan.row_sets, [&]<int kRowSets>() {
    launch_clusters(stream, code_product_kernel<kKind, kRowSets>, grid, kCodeThreads, plan.split,
                    static_cast<size_t>(plan.shared_bytes), p, plan);
  });
}

}  // namespace nanovllm::cuda
