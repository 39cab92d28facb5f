// Products of 17 to 64 rows with weights in codes, on Hopper: y[R,N] = x[R,K] W[N,K]^T + bias.
//
// A warpgroup's products take weights from registers, as the lanes of its warps decode them, and
// rows from shared memory, where the tensor cores read them once for 64 features: what few rows'
// products of 16 features read again for each tile. The sums of a group of columns are scaled once,
// while the next group is decoded.
//
// Each warp has a tile of 16 features and a stream of its own of the tile's blocks of codes,
// brought by the copy engine into slots that it alone reads. A block's last warp has the engine
// bring the rows, for 256 columns at a time, into a ring that all of its warpgroups read: some have
// other features, others share K, block of columns by block of columns in turn. The blocks of a
// cluster share K too, a range each, and read each other's sums in the end, in order. The first
// codes are under way before the kernel waits for its predecessor.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/wgmma_weights.cuh"
#include "backend/cuda/linear/code_form.cuh"
#include "backend/cuda/linear/code_kinds.h"
#include "backend/cuda/linear/code_scaling.cuh"

namespace nanovllm::cuda {

struct CodeWgmmaBarriers {
  Barrier codes[kMaxGroups * kGroupTiles][kMaxGroupSlots];
  Barrier rows_full[kMaxRowStages], rows_free[kMaxRowStages];
};
static_assert(sizeof(CodeWgmmaBarriers) <= 1024);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Which part of the product a warp computes.
struct CodeWgmmaItem {
  __device__ CodeWgmmaItem(const CodeProduct& p, const CodeWgmmaPlan& plan, int warp) {
    const int group = warp / kGroupTiles;
    share = group & (plan.k_groups - 1);
    // Tiles behind the last one compute what the last one does, and store nothing.
    const int first = static_cast<int>(blockIdx.y) * (plan.features() / kTileRows);
    tile_of_panel = group / plan.k_groups * kGroupTiles + warp % kGroupTiles;
    tile = min(first + tile_of_panel, p.shape.num_tiles - 1);
    first_block = static_cast<int>(blockIdx.x) * plan.range_blocks;
    num_blocks = max(min(plan.range_blocks, p.shape.num_blocks - first_block), 0);
  }

  int share;          // of those of the warpgroups that share K
  int tile_of_panel;  // of the block's
  int tile;
  int first_block, num_blocks;  // of 256 columns, of all warpgroups
};

// A warp's blocks of codes, in order.
class TileBlocks {
 public:
  __device__ TileBlocks(const CodeProduct& p, const CodeWgmmaPlan& plan, const CodeWgmmaItem& item,
                        Barrier* barriers, const char* slots)
      : p_(p),
        plan_(plan),
        barriers_(barriers),
        slots_(shared_address(slots)),
        next_(item.first_block + item.share),
        end_(item.first_block + item.num_blocks),
        source_(static_cast<const char*>(p.codes) + item.tile * p.shape.tile_bytes +
                int64_t{next_} * p.shape.block_bytes) {}

  // Starts the copy of the next block, if there is one, into the slot that is its turn.
  __device__ void fetch() {
    if (next_ >= end_) return;
    const int bytes = next_ + 1 == p_.shape.num_blocks ? plan_.tail_bytes : p_.shape.block_bytes;
    if (threadIdx.x % 32 == 0) {
      barriers_[filled_].expect(bytes);
      copy_bulk(slots_ + filled_ * p_.shape.block_bytes, source_, bytes, barriers_[filled_],
                kEvictFirst);
    }
    source_ += plan_.k_groups * p_.shape.block_bytes;
    next_ += plan_.k_groups;
    if (++filled_ == plan_.slots) filled_ = 0;
  }

  // The offset of the next block's slot, once it is there.
  __device__ int wait() const {
    barriers_[used_].wait(parity_);
    return used_ * p_.shape.block_bytes;
  }
  // Of the block that has been used up, whose slot is the next one's.
  __device__ void next() {
    __syncwarp();
    if (++used_ == plan_.slots) {
      used_ = 0;
      parity_ ^= 1;
    }
    fetch();
  }

 private:
  const CodeProduct& p_;
  const CodeWgmmaPlan& plan_;
  Barrier* const barriers_;
  const uint32_t slots_;
  int next_;
  const int end_;
  const char* source_;
  int filled_ = 0, used_ = 0;
  uint32_t parity_ = 0;
};

// A warpgroup's sums of 64 features and kRows rows.
template <typename Form, int kRows>
class WarpgroupSums {
 public:
  __device__ WarpgroupSums(const CodeShape& shape, const uint32_t* pair_table)
      : decoder_(shape, pair_table) {}

  // A warp's block of codes, so many units, and the description of its columns of the rows.
  __device__ void add_block(const char* block, uint64_t x, int units) {
    decoder_.begin_block(block);
    if (units >= kBlockUnits) return add_units<kBlockUnits>(block, x, 0);
#  pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      add_units<1>(block, x + unit * kUnitLines, unit);
    }
  }

  // To sums[kRows][stride], of the warp's features.
  __device__ void store(float* sums, int stride) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const target = sums + lane % 4 * 2 * stride + lane / 4;
#  pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      target[(i / 4 * 8 + i % 2) * stride + i / 2 % 2 * 8] = sums_[i];
    }
  }

 private:
  static constexpr int kSteps = Form::kSteps;
  static constexpr bool kIsScaled = Form::kScaling != Scaling::kNone;
  // A group's products are added up while the next one's are under way, or with many rows while its
  // weights are decoded.
  static constexpr int kBuffers = kRows > 32 ? 1 : 2;
  static constexpr int kUnitLines = kRows * kUnitColumns * 2 / 16;  // in the coin of descriptions

  // Ends when all products have.
  template <int kUnits>
  __device__ void add_units(const char* block, uint64_t x, int first_unit) {
    constexpr int kGroups = kUnits * kUnitSteps / kSteps;
    uint32_t a[2][kSteps][4];
    float2 scales[2];
#  pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int unit = group * kSteps / kUnitSteps, step = group * kSteps % kUnitSteps;
      const int now = group % 2, before = 1 - now;
      scales[now] = decoder_.decode(a[now], block, first_unit + unit, step).scale;
      settle(a[now]);
      if (kBuffers == 1 && group > 0) collect<0>(products_[0], scales[before]);
      multiply(products_[now % kBuffers], a[now], x + unit * kUnitLines + step * 2);
      if (kBuffers == 2 && group > 0) collect<1>(products_[before % kBuffers], scales[before]);
      if (!kIsScaled) wait_products<1>();  // for the registers of the group before
    }
    constexpr int kLast = (kGroups - 1) % 2;
    collect<0>(products_[kLast % kBuffers], scales[kLast]);
    if (!kIsScaled) settle(sums_);
  }

  __device__ void multiply(float (&products)[kRows / 2], const uint32_t (&a)[kSteps][4],
                           uint64_t x) {
    begin_products();
    float(&d)[kRows / 2] = kIsScaled ? products : sums_;
    multiply_features<!kIsScaled>(d, a[0], x);
#  pragma unroll
    for (int s = 1; s < kSteps; ++s) multiply_features<true>(d, a[s], x + s * 2);
    commit_products();
  }

  // Adds a group's products once at most kPending other groups' are under way.
  template <int kPending>
  __device__ void collect(float (&products)[kRows / 2], float2 scale) {
    wait_products<kPending>();
    if constexpr (kIsScaled) {
      settle(products);
#  pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        sums_[i] = fmaf(i % 4 < 2 ? scale.x : scale.y, products[i], sums_[i]);
      }
      settle(sums_);
    }
  }

  TileDecoder<Form> decoder_;
  float sums_[kRows / 2] = {}, products_[kBuffers][kRows / 2] = {};
};

// The copies of the rows, by one lane.
__device__ inline void fetch_rows(const CUtensorMap& map, const CodeWgmmaPlan& plan,
                                  const CodeWgmmaItem& item, char* ring,
                                  CodeWgmmaBarriers& barriers) {
#  pragma unroll 1
  for (int step = 0; step < item.num_blocks; ++step) {
    const int stage = step & (plan.row_stages - 1);
    if (step >= plan.row_stages) {
      barriers.rows_free[stage].wait((step >> plan.row_shift & 1) ^ 1);
    }
    barriers.rows_full[stage].expect(plan.row_bytes);
    load_box<false>(ring + stage * plan.row_bytes, map, 0, (item.first_block + step) * kBlockUnits,
                    barriers.rows_full[stage]);
  }
}

// Adds up the sums of those that share K, in order, and writes the outputs: each of the cluster's
// blocks those of some rows.
template <int kSplit>
__device__ void finish_panel(const CodeProduct& p, const CodeWgmmaPlan& plan, float* sums) {
  const int features = plan.features(), stride = features + kSumPadding;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % features, feature = static_cast<int>(blockIdx.y) * features + column;
  if (thread >= plan.groups * kGroupTiles * 32 || feature >= p.features) return;
  const float* of_rank[kSplit];
  of_rank[0] = sums;
  if constexpr (kSplit > 1) {
#  pragma unroll
    for (int rank = 0; rank < kSplit; ++rank) {
      of_rank[rank] = cooperative_groups::this_cluster().map_shared_rank(sums, rank);
    }
  }
  const int first = thread / features * kSplit + static_cast<int>(blockIdx.x);
#  pragma unroll 1
  for (int row = first; row < p.rows; row += 2 * plan.k_groups * kSplit) {
    float y = 0;
    for (int share = 0; share < plan.k_groups; ++share) {
      float of_share[kSplit];
#  pragma unroll
      for (int rank = 0; rank < kSplit; ++rank) {
        of_share[rank] = of_rank[rank][(share * plan.rows + row) * stride + column];
      }
#  pragma unroll
      for (int rank = 0; rank < kSplit; ++rank) y += of_share[rank];
    }
    store_output(p, row, feature, 0, scaled_output(p, 0, feature, feature, y));
  }
}

__device__ inline void finish_panel(const CodeProduct& p, const CodeWgmmaPlan& plan, float* sums) {
  if (plan.split == 1) {
    __syncthreads();
    return finish_panel<1>(p, plan, sums);
  }
  cooperative_groups::this_cluster().sync();
  if (plan.split == 2) {
    finish_panel<2>(p, plan, sums);
  } else {
    finish_panel<4>(p, plan, sums);
  }
  cooperative_groups::this_cluster().sync();  // sums are read until then
}

// Of a warp's slots, and by one of a block's warps of the ring of rows.
__device__ inline void init_barriers(const CodeWgmmaPlan& plan, int warp,
                                     CodeWgmmaBarriers& barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < plan.slots) barriers.codes[warp][lane].init(1);
  if (warp == 0 && lane < plan.row_stages) {
    barriers.rows_full[lane].init(1);
    barriers.rows_free[lane].init_warps(plan.groups / plan.k_groups * kGroupTiles);
  }
  publish_barriers();
  __syncwarp();
}

// What a warp does that computes: leaves its sums where rows were.
template <typename Form, int kRows>
__device__ void multiply_tile_of_warp(const CodeProduct& p, const CodeWgmmaPlan& plan, int warp,
                                      char* memory, CodeWgmmaBarriers& barriers) {
  const CodeWgmmaItem item(p, plan, warp);
  const char* const slots = memory + plan.ring_offset + warp * plan.slots * p.shape.block_bytes;
  auto* const pair_table = reinterpret_cast<uint32_t*>(memory + plan.table_offset);
  init_barriers(plan, warp, barriers);
  TileBlocks blocks(p, plan, item, barriers.codes[warp], slots);
#  pragma unroll 1
  for (int i = 0; i < plan.slots; ++i) blocks.fetch();
  if constexpr (Form::kKind == CodeKind::kTable4) fill_pair_table(p.shape, pair_table);
  __syncthreads();
  wait_for_predecessor();
  WarpgroupSums<Form, kRows> sums(p.shape, pair_table);
  const uint64_t rows = describe_tile(shared_address(memory + plan.rows_offset));
#  pragma unroll 1
  for (int step = item.share; step < item.num_blocks; step += plan.k_groups) {
    const int stage = step & (plan.row_stages - 1);
    const char* const block = slots + blocks.wait();
    barriers.rows_full[stage].wait(step >> plan.row_shift & 1);
    const int units = p.shape.num_units - (item.first_block + step) * kBlockUnits;
    sums.add_block(block, rows + stage * (plan.row_bytes / 16), units);
    blocks.next();
    barriers.rows_free[stage].arrive_warp();
  }
  __syncthreads();
  const int stride = plan.features() + kSumPadding;
  sums.store(reinterpret_cast<float*>(memory + plan.rows_offset) + item.share * kRows * stride +
                 item.tile_of_panel * kTileRows,
             stride);
}

// What the last warp does.
template <typename Form>
__device__ void bring_rows(const CUtensorMap& map, const CodeProduct& p, const CodeWgmmaPlan& plan,
                           int warp, char* memory, CodeWgmmaBarriers& barriers) {
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first) prefetch_map(map);
  if constexpr (Form::kKind == CodeKind::kTable4) {
    fill_pair_table(p.shape, reinterpret_cast<uint32_t*>(memory + plan.table_offset));
  }
  __syncthreads();
  wait_for_predecessor();
  const CodeWgmmaItem item(p, plan, warp);
  if (is_first) fetch_rows(map, plan, item, memory + plan.rows_offset, barriers);
  __syncwarp();
  __syncthreads();
}

#endif

// A scheduler has registers for 16,384 lanes of one: five warps of 96, or four of 120.
template <typename Form, int kRows>
__global__ void __maxnreg__(kRows > 32 ? 120 : 96)
    code_wgmma_kernel(const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CodeProduct p,
                      const __grid_constant__ CodeWgmmaPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char dynamic[];
  release_successor();
  char* const memory = dynamic + (-shared_address(dynamic) & 1023);
  auto& barriers = *reinterpret_cast<CodeWgmmaBarriers*>(memory);
  const int warp = uniform_warp();
  if (warp < plan.groups * kGroupTiles) {
    multiply_tile_of_warp<Form, kRows>(p, plan, warp, memory, barriers);
  } else {
    bring_rows<Form>(x_map, p, plan, warp, memory, barriers);
  }
  finish_panel(p, plan, reinterpret_cast<float*>(memory + plan.rows_offset));
#endif
}

template <CodeKind kKind>
void launch_wgmma_kind(cudaStream_t stream, const CodeProduct& p, const CodeWgmmaPlan& plan) {
  const CUtensorMap x_map =
      make_tensor_map(p.x, p.rows, p.shape.in_features, 1, {plan.rows, kBlockUnits});
  with_form<kKind>(p.shape, [&]<typename Form>() {
    if constexpr (Form::kScaling != Scaling::kAdded) {
      with_constant<8, 16, 32, 64>(plan.rows, [&]<int kRows>() {
        launch_clusters(stream, code_wgmma_kernel<Form, kRows>, dim3(plan.split, plan.panels),
                        (plan.groups * kGroupTiles + 1) * 32, plan.split,
                        static_cast<size_t>(plan.shared_bytes), x_map, p, plan);
      });
    } else {
      NANOVLLM_CHECK(!"a kernel that was planned");
    }
  });
}

}  // namespace nanovllm::cuda
