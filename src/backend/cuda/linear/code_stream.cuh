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
#include "backend/cuda/linear/code_fragments.cuh"
#include "backend/cuda/linear/code_scaling.cuh"
#include "backend/cuda/linear/code_stream.h"

namespace nanovllm::cuda {

constexpr int kSumRow = 20;  // floats: a row's sums of 16 features
constexpr int kSumsOfWarp = 8 * kSumRow;

// What a kernel knows of the codes.
template <CodeKind kKind_, ScaleKind kScales_, Scaling kScaling_, int kSteps_, bool kIsSuper_>
struct CodeForm {
  static constexpr CodeKind kKind = kKind_;
  static constexpr ScaleKind kScales = kScales_;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kSteps = kSteps_;  // whose sums are scaled at once
  static constexpr bool kIsSuper = kIsSuper_;
  static constexpr bool kHasOffsets = kScaling == Scaling::kTaken || kScaling == Scaling::kAdded;
  static constexpr int kNumberBytes = kScales == ScaleKind::kFloat32 ? 4 : 2;
};

struct StreamBarriers {
  Barrier codes[kMaxStreamWarps][kMaxStreamSlots];
  Barrier x_full[2], x_empty[2];
};
static_assert(sizeof(StreamBarriers) <= 1024);

// Two signed bytes, exactly.
__device__ inline float2 to_floats(uint32_t pair) {
  const uint32_t raised = pair ^ 0x8080u;
  constexpr uint32_t kTwoTo23 = 0x4b000000u;
  constexpr float kRaised = 8388608.f + 128.f;
  return {__uint_as_float(__byte_perm(raised, kTwoTo23, 0x7540)) - kRaised,
          __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7541)) - kRaised};
}

// Sums of a tile of features and kRowSets sets of 8 rows.
template <typename Form, int kRowSets>
class StreamSums {
 public:
  __device__ StreamSums(const CodeShape& shape, const uint32_t* pair_table, int num_rows,
                        int x_stride)
      : shape_(shape) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int set = 0; set < kRowSets; ++set) {
      // Of four matrices of 8 rows and 8 columns lane l has row l % 8 of matrix l / 8; what there
      // is not is as good as any other row.
      row_offsets_[set] = min(set * 8 + lane % 8, num_rows - 1) * x_stride + lane / 8 * 16;
    }
    values_.pairs = pair_table + threadIdx.x % kTableCopies;
    values_.added[0] = values_.added[1] = added_to_codes(shape, 0);
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
    if constexpr (Form::kIsSuper) {
      super_scale_ = load_scale(Form::kScales, block, row_pair());
      if constexpr (Form::kHasOffsets)
        super_offset_ = load_scale(Form::kScales, block, 8 + row_pair());
    }
    const char* const codes = block + shape_.header_bytes;
    if (units >= kBlockUnits) {
#pragma unroll
      for (int unit = 0; unit < kBlockUnits; ++unit) add_unit(block, codes, x, unit);
    } else {
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) add_unit(block, codes, x, unit);
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
  __device__ static int row_pair() { return static_cast<int>(threadIdx.x) % 32 / 4; }

  __device__ PairOfScales scales_of(const char* block, int column) const {
    PairOfScales got;
    if constexpr (Form::kScaling == Scaling::kNone) return got;
    constexpr int kParts = Form::kHasOffsets ? 2 : 1;
    const int shift = Form::kSteps == 4 ? shape_.group_shift : Form::kSteps == 2 ? 5 : 4;
    const int at = (column >> shift) * 8 + row_pair();
    if constexpr (Form::kIsSuper) {
      const auto* const codes =
          reinterpret_cast<const uint16_t*>(block + kParts * kTileRows * Form::kNumberBytes);
      const float2 t = to_floats(codes[at]);
      got.scale = {super_scale_.x * t.x, super_scale_.y * t.y};
      if constexpr (Form::kHasOffsets) {
        const float2 n = to_floats(codes[(kBlockColumns * 8 >> shift) + at]);
        got.offset = {super_offset_.x * -n.x, super_offset_.y * -n.y};
      }
    } else {
      got.scale = load_scale(Form::kScales, block, at);
      if constexpr (Form::kHasOffsets) {
        got.offset = load_scale(
            Form::kScales, block + (kBlockColumns * kTileRows >> shift) * Form::kNumberBytes, at);
        if (Form::kKind == CodeKind::kInt8) {
          got.offset = {-got.scale.x * got.offset.x, -got.scale.y * got.offset.y};
        }
      }
    }
    return got;
  }

  __device__ void add_unit(const char* block, const char* codes, uint32_t x, int unit) {
#pragma unroll
    for (int step = 0; step < kUnitSteps; step += Form::kSteps) {
      add_group(block, codes + unit * unit_bytes_of(Form::kKind),
                x + (unit * kUnitSteps + step) * 32, unit, step);
    }
  }

  __device__ void add_group(const char* block, const char* codes, uint32_t x, int unit, int step) {
    constexpr int kSteps = Form::kSteps;
    const PairOfScales scales = scales_of(block, (unit * kUnitSteps + step) * 16);
    CodeValues values = values_;
    if constexpr (Form::kScaling == Scaling::kTaken) {
      values.added[0] = added_to_codes(shape_, scales.offset.x);
      values.added[1] = added_to_codes(shape_, scales.offset.y);
    }
    uint32_t a[kSteps][4];
    load_codes<Form::kKind, kSteps>(a, codes, step, values);
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

  const CodeShape& shape_;
  CodeValues values_;
  int row_offsets_[kRowSets];  // bytes
  float2 super_scale_ = {}, super_offset_ = {};
  float sums_[kRowSets][4] = {};
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A warp's number, in a way that the compiler sees that all lanes agree.
__device__ inline int uniform_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

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

// The copies of a slice of x, a row a lane, by one warp.
__device__ inline void fetch_slice(const CodeProduct& p, const StreamPlan& plan,
                                   const RowTile& rows, int slice, char* target, Barrier& barrier) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int range = (static_cast<int>(blockIdx.x) & (plan.split - 1)) * plan.range_blocks;
  const int first = (range + slice * plan.slice_blocks) * kBlockColumns;
  const int end = min((range + plan.range_blocks) * kBlockColumns, p.shape.in_features);
  const int columns = max(min(plan.slice_blocks * kBlockColumns, end - first), 0);
  if (lane == 0) barrier.expect(rows.num_rows * columns * 2);
  __syncwarp();
  if (lane < rows.num_rows && columns > 0) {
    int64_t row = rows.first_row + lane;
    if (p.tokens != nullptr) row = p.tokens[row];
    copy_bulk(shared_address(target + lane * plan.x_stride),
              static_cast<const __nv_bfloat16*>(p.x) + row * p.shape.in_features + first,
              columns * 2, barrier);
  }
}

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
  char* const x = memory_of_stream + plan.x_offset;
  const int warp = uniform_warp(), lane = static_cast<int>(threadIdx.x) % 32;
  char* const slots = memory_of_stream + plan.ring_offset + warp * plan.slots * p.shape.block_bytes;
  RowTile rows = {0, 0, p.rows};
  if (p.tiles != nullptr) {
    wait_for_predecessor();
    if (static_cast<int>(blockIdx.y) >= *p.num_tiles) return;
    rows = p.tiles[blockIdx.y];
  }
  release_successor();
  if (lane < plan.slots) barriers.codes[warp][lane].init(1);
  if (threadIdx.x < 2) {
    barriers.x_full[threadIdx.x].init(1);
    barriers.x_empty[threadIdx.x].init(plan.warps);
  }
  publish_barriers();
  __syncwarp();
  BlockStream stream(p, plan, rows.expert, warp, barriers.codes[warp], slots);
#  pragma unroll 1
  for (int i = 0; i < plan.slots; ++i) stream.fetch();
  if constexpr (Form::kKind == CodeKind::kTable4) fill_pair_table(p.shape, pair_table);
  __syncthreads();
  wait_for_predecessor();
  const int num_slices = plan.slices > 1 ? plan.slices * plan.rounds : 1;  // that are brought
  if (warp == 0) {
    for (int i = 0; i < min(num_slices, 2); ++i) {
      fetch_slice(p, plan, rows, i % plan.slices, x + i * plan.x_bytes, barriers.x_full[i]);
    }
  }

  StreamSums<Form, kRowSets> sums(p.shape, pair_table, rows.num_rows, plan.x_stride);
  auto* const all_sums = reinterpret_cast<float*>(memory_of_stream + plan.sums_offset);
  int brought = 0, halves = 0;  // slices that have been used up
  int item = stream.first_item();
#  pragma unroll 1
  for (int round = 0; round < plan.rounds; ++round, item += stream.item_step()) {
    sums.clear();
#  pragma unroll 1
    for (int slice = 0; slice < plan.slices; ++slice) {
      const int slot = plan.slices > 1 ? brought & 1 : 0;
      barriers.x_full[slot].wait(plan.slices > 1 ? brought >> 1 & 1 : 0);
      const int first = stream.first_block(slice);
      const int end = item < plan.items ? stream.end_block(slice) : 0;
      uint32_t columns = shared_address(x + slot * plan.x_bytes) +
                         (first - stream.slice_block(slice)) * kBlockColumns * 2;
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
      if (plan.slices == 1) continue;
      __syncwarp();
      if (lane == 0) barriers.x_empty[slot].arrive();
      if (warp == 0 && brought + 2 < num_slices) {
        barriers.x_empty[slot].wait(brought >> 1 & 1);
        fetch_slice(p, plan, rows, (brought + 2) % plan.slices, x + slot * plan.x_bytes,
                    barriers.x_full[slot]);
      }
      ++brought;
    }
    // One half of the memory of sums is read while the other is written.
    const auto finish = [&]<int kSet>() {
      if (kSet * 8 >= rows.num_rows) return;
      float* const half = all_sums + halves % 2 * plan.warps * kSumsOfWarp;
      sums.template store<kSet>(half + warp * kSumsOfWarp);
      meet_warps(plan, warp);
      if (item < plan.items) {
        if (plan.split > 1) {
          finish_rows<true>(p, plan, rows, warp, item, kSet * 8, half);
        } else {
          finish_rows<false>(p, plan, rows, warp, item, kSet * 8, half);
        }
      }
      ++halves;
    };
    finish.template operator()<0>();
    if constexpr (kRowSets > 1) finish.template operator()<1>();
    if constexpr (kRowSets > 2) {
      finish.template operator()<2>();
      finish.template operator()<3>();
    }
  }
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

// Of one kind of codes. Each kind is compiled in a file of its own; see code_product.cu.
template <CodeKind kKind>
void launch_stream_kind(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan) {
  using enum ScaleKind;
  using enum Scaling;
  const int steps = p.shape.is_row_scaled ? kUnitSteps : scaled_steps(p.shape);
  with_constant<kFloat16, kBFloat16, kFloat32>(scales_in_stream(p.shape), [&]<ScaleKind kScales>() {
    with_constant<kNone, kScale, kTaken, kAdded>(scaling_of(p.shape), [&]<Scaling kScaling>() {
      with_constant<1, 2, 4>(steps, [&]<int kSteps>() {
        with_constant<false, true>(p.shape.is_super, [&]<bool kIsSuper>() {
          if constexpr (has_stream_kernel(kKind, kScales, kScaling, kSteps, kIsSuper)) {
            launch_stream<CodeForm<kKind, kScales, kScaling, kSteps, kIsSuper>>(stream, p, plan);
          } else {
            NANOVLLM_CHECK(!"a kernel that was planned");
          }
        });
      });
    });
  });
}
void launch_stream_4(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
void launch_stream_table_4(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
void launch_stream_5(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
void launch_stream_6(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
void launch_stream_int8(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
void launch_stream_e4m3(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);

}  // namespace nanovllm::cuda
