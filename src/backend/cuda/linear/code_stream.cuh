// Products of few rows with weights in codes, on Hopper and later: y[R,N] = x[R,K] W[N,K]^T + bias,
// bound by the bytes of the codes.
//
// Each warp has a stream of its own of blocks of codes, brought by the copy engine into slots that
// it alone reads: no barrier stands between the stream and the products. An item is a tile of 16
// features; some warps share its K and add up their sums in the end, in order. The rows are in
// shared memory, all of K or, where that has no room, slices of it in turn. The first codes are
// under way before the kernel waits for its predecessor. A multiprocessor has room for as many
// blocks as leave it 16 warps or, where a kernel has few registers, 24: so many are needed to keep
// it busy.
//
// Experts' rows come in tiles, each with a weight of its own and some blocks; as tiles are known
// only when the predecessor has ended, nothing is under way before.
//
// Products are as in code_product.cuh, but that all a format says is known when the kernel is
// compiled: then few instructions stand between codes and tensor cores.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/device/bulk_copy.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/linear/code_form.cuh"
#include "backend/cuda/linear/code_kinds.h"
#include "backend/cuda/linear/code_scaling.cuh"

namespace nanovllm::cuda {

constexpr int kSumRow = 20;  // floats: a row's sums of 16 features
constexpr int kSumsOfWarp = 8 * kSumRow;

struct StreamBarriers {
  Barrier codes[kMaxStreamWarps][kMaxStreamSlots];
  Barrier x_full[2], x_empty[2];
};
static_assert(sizeof(StreamBarriers) <= 1024);

// Sums of a tile of features and kRowSets sets of 8 rows.
template <typename Form, int kRowSets>
class StreamSums {
 public:
  __device__ StreamSums(const CodeShape& shape, const uint32_t* pair_table, int num_rows,
                        int x_stride)
      : decoder_(shape, pair_table) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      // Of four matrices of 8 rows and 8 columns lane l has row l % 8 of matrix l / 8; what there
      // is not is as good as any other row.
      row_offsets_[set] = min(set * 8 + lane % 8, num_rows - 1) * x_stride + lane / 8 * 16;
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
#pragma unroll
      for (float& sum : sums_[set]) sum = 0;
    }
  }

  // A block of codes, and the address of its columns of the first row.
  __device__ void add_block(const char* block, uint32_t x, int units) {
    decoder_.begin_block(block);
    if (units >= kBlockUnits) {
#pragma unroll
      for (int unit = 0; unit < kBlockUnits; ++unit) add_unit(block, x, unit);
    } else {
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) add_unit(block, x, unit);
    }
  }

  // Those of a set to sums[8][kSumRow].
  template <int kSet>
  __device__ void store(float* sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const target = sums + lane % 4 * 2 * kSumRow + lane / 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) target[e % 2 * kSumRow + e / 2 * 8] = sums_[kSet][e];
  }

 private:
  __device__ void add_unit(const char* block, uint32_t x, int unit) {
#pragma unroll
    for (int step = 0; step < kUnitSteps; step += Form::kSteps) {
      add_group(block, x + (unit * kUnitSteps + step) * 32, unit, step);
    }
  }

  __device__ void add_group(const char* block, uint32_t x, int unit, int step) {
    constexpr int kSteps = Form::kSteps;
    uint32_t a[kSteps][4];
    const PairOfScales scales = decoder_.decode(a, block, unit, step);
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      uint32_t rows[kSteps][2];
      load_rows(rows, x + row_offsets_[set]);
      float(&sum)[4] = sums_[set];
      if constexpr (Form::kScaling == Scaling::kNone) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) mma_bf16(sum, a[s], rows[s][0], rows[s][1]);
        continue;
      }
      float y[4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) mma_bf16(y, a[s], rows[s][0], rows[s][1]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum[e] = fmaf(e < 2 ? scales.scale.x : scales.scale.y, y[e], sum[e]);
      }
      if constexpr (Form::kScaling == Scaling::kAdded) {
        const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        float row_sums[4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) mma_bf16(row_sums, ones, rows[s][0], rows[s][1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum[e] = fmaf(e < 2 ? scales.offset.x : scales.offset.y, row_sums[e], sum[e]);
        }
      }
    }
  }

  // The right operands of 8 rows.
  __device__ static void load_rows(uint32_t (&rows)[Form::kSteps][2], uint32_t x) {
    if constexpr (Form::kSteps == 1) {
      load_two_matrices(rows[0], x - static_cast<int>(threadIdx.x) % 32 / 16 * 32);
    } else {
#pragma unroll
      for (int s = 0; s < Form::kSteps; s += 2) {
        uint32_t four[4];
        load_matrices(four, x + s * 32);
        rows[s][0] = four[0];
        rows[s][1] = four[1];
        rows[s + 1][0] = four[2];
        rows[s + 1][1] = four[3];
      }
    }
  }

  TileDecoder<Form> decoder_;
  int row_offsets_[kRowSets];  // bytes
  float sums_[kRowSets][4] = {};
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A warp's stream of blocks of codes, in the order of their use: of each of its items, for each
// slice of K, the blocks of its share.
class BlockStream {
 public:
  __device__ BlockStream(const CodeProduct& p, const StreamPlan& plan, int weight, int warp,
                         Barrier* barriers, char* slots)
      : p_(p),
        plan_(plan),
        barriers_(barriers),
        slots_(shared_address(slots)),
        first_tile_(int64_t{weight} * (p.features / kTileRows)),
        share_(warp % plan.k_warps * plan.share_blocks),
        item_((static_cast<int>(blockIdx.x) >> plan.split_shift()) * (plan.warps / plan.k_warps) +
              warp / plan.k_warps),
        range_((static_cast<int>(blockIdx.x) & (plan.split - 1)) * plan.range_blocks),
        range_end_(min(range_ + plan.range_blocks, p.shape.num_blocks)) {
    begin_run(item_);
  }

  // The first of the warp's items; the next ones are a step further each.
  __device__ int first_item() const { return item_; }
  __device__ int item_step() const {
    return (static_cast<int>(gridDim.x) >> plan_.split_shift()) * (plan_.warps / plan_.k_warps);
  }
  // Of a slice, blocks that are the warp's.
  __device__ int slice_block(int slice) const { return range_ + slice * plan_.slice_blocks; }
  __device__ int first_block(int slice) const { return slice_block(slice) + share_; }
  __device__ int end_block(int slice) const {
    const int slice_end = min(slice_block(slice + 1), range_end_);
    return min(first_block(slice) + plan_.share_blocks, slice_end);
  }

  // Starts the copy of the next block, if there is one, into the slot that is its turn.
  __device__ void fetch() {
    if (next_block_ >= end_block_ && !find_run()) return;
    const int bytes =
        next_block_ + 1 == p_.shape.num_blocks ? plan_.tail_bytes : p_.shape.block_bytes;
    if (threadIdx.x % 32 == 0) {
      barriers_[filled_].expect(bytes);
      copy_bulk(slots_ + filled_ * p_.shape.block_bytes, source_, bytes, barriers_[filled_],
                kEvictFirst);
    }
    source_ += p_.shape.block_bytes;
    ++next_block_;
    if (++filled_ == plan_.slots) filled_ = 0;
  }

  // The offset of the next block's slot, once it is there.
  __device__ int wait() const {
    barriers_[used_].wait(parity_);
    return used_ * p_.shape.block_bytes;
  }
  __device__ void next() {
    if (++used_ == plan_.slots) {
      used_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  // The blocks of a slice of an item.
  __device__ void begin_run(int item) {
    fetched_item_ = item;
    next_block_ = first_block(slice_);
    end_block_ = item < plan_.items ? end_block(slice_) : 0;
    source_ = static_cast<const char*>(p_.codes) + (first_tile_ + item) * p_.shape.tile_bytes +
              int64_t{next_block_} * p_.shape.block_bytes;
  }
  __device__ bool find_run() {
    while (fetched_item_ < plan_.items) {
      const bool is_last = ++slice_ == plan_.slices;
      if (is_last) slice_ = 0;
      begin_run(is_last ? fetched_item_ + item_step() : fetched_item_);
      if (next_block_ < end_block_) return true;
    }
    return false;
  }

  const CodeProduct& p_;
  const StreamPlan& plan_;
  Barrier* const barriers_;
  const uint32_t slots_;
  const int64_t first_tile_;  // of the weight
  const int share_, item_, range_, range_end_;
  int fetched_item_, slice_ = 0, next_block_, end_block_;
  const char* source_;
  int filled_ = 0, used_ = 0;
  uint32_t parity_ = 0;
};

// The columns of the rows in shared memory: all of K, or slices of it in turn.
class RowSlices {
 public:
  // By all warps, once the predecessor has ended.
  __device__ RowSlices(const CodeProduct& p, const StreamPlan& plan, const RowTile& rows, int warp,
                       char* memory, StreamBarriers& barriers)
      : p_(p),
        plan_(plan),
        rows_(rows),
        is_first_warp_(warp == 0),
        memory_(shared_address(memory)),
        barriers_(barriers),
        num_(plan.slices > 1 ? plan.slices * plan.rounds : 1) {
    if (!is_first_warp_) return;
    for (int i = 0; i < min(num_, 2); ++i) fetch(i);
  }

  // The address of the next one, once it is there.
  __device__ uint32_t wait() const {
    barriers_.x_full[used_ & 1].wait(used_ >> 1 & 1);
    return memory_ + (used_ & 1) * plan_.x_bytes;
  }
  // Of that one, which has been used up; the only one stays.
  __device__ void next() {
    if (plan_.slices == 1) return;
    const int slot = used_ & 1;
    __syncwarp();
    if (threadIdx.x % 32 == 0) barriers_.x_empty[slot].arrive();
    if (is_first_warp_ && used_ + 2 < num_) {
      barriers_.x_empty[slot].wait(used_ >> 1 & 1);
      fetch(used_ + 2);
    }
    ++used_;
  }

 private:
  // Starts the copies of one, a row a lane, by one warp.
  __device__ void fetch(int which) {
    const int lane = static_cast<int>(threadIdx.x) % 32, slot = which & 1;
    const int range = (static_cast<int>(blockIdx.x) & (plan_.split - 1)) * plan_.range_blocks;
    const int first = (range + which % plan_.slices * plan_.slice_blocks) * kBlockColumns;
    const int end = min((range + plan_.range_blocks) * kBlockColumns, p_.shape.in_features);
    const int columns = max(min(plan_.slice_blocks * kBlockColumns, end - first), 0);
    Barrier& barrier = barriers_.x_full[slot];
    if (lane == 0) barrier.expect(rows_.num_rows * columns * 2);
    __syncwarp();
    if (lane >= rows_.num_rows || columns == 0) return;
    int64_t row = rows_.first_row + lane;
    if (p_.tokens != nullptr) row = p_.tokens[row];
    copy_bulk(memory_ + slot * plan_.x_bytes + lane * plan_.x_stride,
              static_cast<const __nv_bfloat16*>(p_.x) + row * p_.shape.in_features + first,
              columns * 2, barrier);
  }

  const CodeProduct& p_;
  const StreamPlan& plan_;
  const RowTile rows_;
  const bool is_first_warp_;
  const uint32_t memory_;
  StreamBarriers& barriers_;
  const int num_;  // that are brought
  int used_ = 0;
};

// The warps that share an item wait for each other.
__device__ inline void meet_warps(const StreamPlan& plan, int warp) {
  if (plan.split > 1) return cooperative_groups::this_cluster().sync();
  if (plan.k_warps == 1) return __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(warp / plan.k_warps + 1), "r"(plan.k_warps * 32)
               : "memory");
}

// Adds up the sums of an item's warps, in order, of 8 rows from `first_row` on, and writes the
// outputs: a thread has one feature. Of two blocks that share K each has a half of the rows.
template <bool kIsSplit>
__device__ void finish_rows(const CodeProduct& p, const StreamPlan& plan, const RowTile& tile,
                            int warp, int item, int first_row, float* sums) {
  const int share = warp & (plan.k_warps - 1), lane = static_cast<int>(threadIdx.x) % 32;
  const int r = lane % kTileRows, feature = item * kTileRows + r;
  if (p.is_gated ? r >= 8 : feature >= p.features) return;
  constexpr int kSplit = kIsSplit ? 2 : 1;
  const int rank = kIsSplit ? static_cast<int>(blockIdx.x) % 2 : 0;
  const int first = (warp - share) * kSumsOfWarp + r, rows = min(tile.num_rows - first_row, 8);
  const int64_t weight = int64_t{tile.expert} * p.features;
  const float* const lower =
      kIsSplit ? cooperative_groups::this_cluster().map_shared_rank(sums, 0) : sums;
  const auto sum = [&](int at) {
    float y = 0;
    for (int k = 0; k < plan.k_warps; ++k) y += lower[at + k * kSumsOfWarp];
    if constexpr (kIsSplit) {
      const float* const upper = cooperative_groups::this_cluster().map_shared_rank(sums, 1);
      for (int k = 0; k < plan.k_warps; ++k) y += upper[at + k * kSumsOfWarp];
    }
    return y;
  };
  for (int row = (share * 2 + lane / kTileRows) * kSplit + rank; row < rows;
       row += plan.k_warps * 2 * kSplit) {
    const int at = first + row * kSumRow;
    if (p.is_gated) {
      store_output(p, first_row + row, item * 8 + r, tile.first_row,
                   gated_output(p, weight, item, r, sum(at), sum(at + 8)));
    } else {
      store_output(p, first_row + row, feature, tile.first_row,
                   scaled_output(p, weight, feature, feature, sum(at)));
    }
  }
}

// Those of kSet of its sets of rows, through `half` of the memory of sums.
template <int kSet, typename Sums>
__device__ void finish_set(const CodeProduct& p, const StreamPlan& plan, const RowTile& rows,
                           int warp, int item, const Sums& sums, float* half) {
  sums.template store<kSet>(half + warp * kSumsOfWarp);
  meet_warps(plan, warp);
  if (item >= plan.items) return;
  if (plan.split > 1) {
    finish_rows<true>(p, plan, rows, warp, item, kSet * 8, half);
  } else {
    finish_rows<false>(p, plan, rows, warp, item, kSet * 8, half);
  }
}

__device__ inline void init_barriers(const StreamPlan& plan, int warp, StreamBarriers& barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < plan.slots) barriers.codes[warp][lane].init(1);
  if (warp == 0 && lane < 2) {
    barriers.x_full[lane].init(1);
    barriers.x_empty[lane].init(plan.warps);
  }
  publish_barriers();
  __syncwarp();
}

// All items of a warp.
template <typename Form, int kRowSets>
__device__ void multiply_items(const CodeProduct& p, const StreamPlan& plan, const RowTile& rows,
                               int warp, BlockStream& stream, char* memory,
                               const uint32_t* pair_table, StreamBarriers& barriers) {
  const char* const slots = memory + plan.ring_offset + warp * plan.slots * p.shape.block_bytes;
  auto* const all_sums = reinterpret_cast<float*>(memory + plan.sums_offset);
  RowSlices slices(p, plan, rows, warp, memory + plan.x_offset, barriers);
  StreamSums<Form, kRowSets> sums(p.shape, pair_table, rows.num_rows, plan.x_stride);
  int halves = 0;  // of the memory of sums: one is read while the other is written
  int item = stream.first_item();
#  pragma unroll 1
  for (int round = 0; round < plan.rounds; ++round, item += stream.item_step()) {
    sums.clear();
#  pragma unroll 1
    for (int slice = 0; slice < plan.slices; ++slice, slices.next()) {
      const int first = stream.first_block(slice);
      const int end = item < plan.items ? stream.end_block(slice) : 0;
      uint32_t columns = slices.wait() + (first - stream.slice_block(slice)) * kBlockColumns * 2;
      int units = p.shape.num_units - first * kBlockUnits;
#  pragma unroll 1
      for (int block = first; block < end; ++block) {
        sums.add_block(slots + stream.wait(), columns, units);
        columns += kBlockColumns * 2;
        units -= kBlockUnits;
        __syncwarp();
        stream.next();
        stream.fetch();
      }
    }
    const auto finish = [&]<int kSet>() {
      if (kSet * 8 >= rows.num_rows) return;
      float* const half = all_sums + halves++ % 2 * plan.warps * kSumsOfWarp;
      finish_set<kSet>(p, plan, rows, warp, item, sums, half);
    };
    finish.template operator()<0>();
    if constexpr (kRowSets > 1) finish.template operator()<1>();
    if constexpr (kRowSets > 2) {
      finish.template operator()<2>();
      finish.template operator()<3>();
    }
  }
}

#endif

template <typename Form, int kRowSets>
__global__ void __maxnreg__(is_small_stream(Form::kKind, kRowSets, Form::kSteps) ? kSmallRegisters
                                                                                 : 128)
    code_stream_kernel(const __grid_constant__ CodeProduct p,
                       const __grid_constant__ StreamPlan plan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char memory_of_stream[];
  auto& barriers = *reinterpret_cast<StreamBarriers*>(memory_of_stream);
  auto* const pair_table = reinterpret_cast<uint32_t*>(memory_of_stream + plan.table_offset);
  const int warp = uniform_warp();
  RowTile rows = {0, 0, p.rows};
  if (p.tiles != nullptr) {
    wait_for_predecessor();
    if (static_cast<int>(blockIdx.y) >= *p.num_tiles) return;
    rows = p.tiles[blockIdx.y];
  }
  release_successor();
  init_barriers(plan, warp, barriers);
  BlockStream stream(p, plan, rows.expert, warp, barriers.codes[warp],
                     memory_of_stream + plan.ring_offset + warp * plan.slots * p.shape.block_bytes);
#  pragma unroll 1
  for (int i = 0; i < plan.slots; ++i) stream.fetch();
  if constexpr (Form::kKind == CodeKind::kTable4) fill_pair_table(p.shape, pair_table);
  __syncthreads();
  wait_for_predecessor();
  multiply_items<Form, kRowSets>(p, plan, rows, warp, stream, memory_of_stream, pair_table,
                                 barriers);
  if (plan.split > 1) cooperative_groups::this_cluster().sync();  // sums are read until then
#endif
}

template <typename Form>
void launch_stream(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  with_constant<1, 2, 4>(plan.row_sets, [&]<int kRowSets>() {
    launch_clusters(stream, code_stream_kernel<Form, kRowSets>, dim3(plan.blocks, plan.row_tiles),
                    plan.warps * 32, plan.split, static_cast<size_t>(plan.shared_bytes), p, plan);
  });
}

template <CodeKind kKind>
void launch_stream_kind(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  with_form<kKind>(p.shape, [&]<typename Form>() { launch_stream<Form>(stream, p, plan); });
}

}  // namespace nanovllm::cuda
