// Matrix products with few rows: y[R,N] = x[R,K] W[N,K]^T, bound by the 2 N K bytes of weights.
//
// A block computes 8 kTiles features of all rows; its warps share K, 64 elements at a time in turn,
// and their sums are added in a fixed order at the end. Features are many enough blocks to fill the
// device, so that no sums meet in device memory; where N is small, the blocks of a cluster share K
// as well and add their sums through distributed shared memory.
//
// Every thread copies exactly the weights that its own tensor core operands hold, 16 bytes at a
// time, into slots of shared memory that it alone reads: no barrier stands between the stream of
// weights and the products. The first slots are filled before the kernel waits for its predecessor
// (weights depend on nothing), so that a chain of products streams without gaps. A thread's 16
// bytes are 8 neighbours along K where mma.m16n8k16 wants four pairs of two products; as x is read
// in the same permuted order, the sums are over the same pairs.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_skinny.h"
#include "backend/cuda/vector.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kUnit = 64;                   // elements of K that a warp takes in turn
constexpr int kBlockUnit = kWarps * kUnit;  // and all warps of a block
constexpr int kMaxRounds = 8;               // of groups of features a block
constexpr int kPad = 32;                    // elements: two neighbouring rows of x share no bank
constexpr int64_t kSharedBytes = int64_t{228} << 10;  // of a multiprocessor
constexpr int64_t kReservedBytes = 1024;              // of each block's, by the system

// Weights in flight: slots for so many units.
template <int kTiles>
constexpr int kStages = kTiles == 1   ? 6
                        : kTiles == 2 ? 4
                        : kTiles == 4 ? 3
                                      : 2;
template <int kTiles>
constexpr int kStageSlots = kTiles * 2 * kThreads;  // of 16 bytes

struct Plan {
  int tiles = 0;  // of 8 features a block
  int rows_at_once = 0;
  int cluster = 1;     // blocks that share K
  int units = 0;       // a warp's, for one group of features
  int groups = 0;      // of 8 tiles features
  int stages = 0;      // slots for so many units are there
  int sum_floats = 0;  // of shared memory for partial sums
  int blocks = 0;
  int64_t shared_bytes = 0;
  int64_t cost = 0;
};

__device__ inline void copy_async(void* shared, const void* global, bool exists) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = exists ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// d[16 rows, 8 features] += a[16 rows, 16] b[16, 8 features]
__device__ inline void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline float round_to_bfloat16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// The stream of a thread's weights: for each group of features of the block and each unit of the
// warp, the thread's part of kTiles tiles.
template <int kTiles>
class WeightStream {
 public:
  __device__ WeightStream(const SkinnyProduct& p, const Plan& plan, uint4* slots, int rank)
      : p_(p), plan_(plan), slots_(slots), rank_(rank), group_(blockIdx.x / plan.cluster) {}

  // Starts the copies of the next unit into the slots of `stage`.
  __device__ void fetch(int stage) {
    if (group_ < plan_.groups) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const int k = (unit_ * plan_.cluster + rank_) * kBlockUnit + warp * kUnit + lane % 4 * 8;
      const auto* weight = static_cast<const __nv_bfloat16*>(p_.weight);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int feature = first_feature(tile) + lane / 4;
        const bool exists = feature < p_.out_features;
        const auto* row = weight + static_cast<int64_t>(exists ? feature : 0) * p_.in_features;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool inside = exists && k + half * 32 < p_.in_features;
          copy_async(slot(stage, tile, half), row + (inside ? k + half * 32 : 0), inside);
        }
      }
      if (++unit_ == plan_.units) {
        unit_ = 0;
        group_ += gridDim.x / plan_.cluster;
      }
    }
    commit_copies();
  }

  __device__ uint4* slot(int stage, int tile, int half) const {
    return slots_ + ((stage * kTiles + tile) * 2 + half) * kThreads + threadIdx.x;
  }

 private:
  // Gate and up of the same outputs go into one group.
  __device__ int first_feature(int tile) const {
    if (p_.epilogue != Epilogue::kActAndMul) return (group_ * kTiles + tile) * 8;
    constexpr int kHalf = kTiles / 2;
    const int first = group_ * kHalf * 8;
    const int end = p_.out_features / 2;
    if (tile < kHalf) return first + tile * 8 < end ? first + tile * 8 : p_.out_features;
    return end + first + (tile - kHalf) * 8;
  }

  const SkinnyProduct& p_;
  const Plan& plan_;
  uint4* const slots_;
  const int rank_;
  int group_;
  int unit_ = 0;
};

// x's rows into shared memory, with the columns this block multiplies: blocks of kBlockUnit
// neighbours, every cluster-th of them.
__device__ void copy_rows(const SkinnyProduct& p, const Plan& plan, int rank, __nv_bfloat16* rows) {
  const int columns = plan.units * kBlockUnit, stride = columns + kPad;
  const auto* x = static_cast<const __nv_bfloat16*>(p.x);
  for (int i = threadIdx.x; i < p.rows * columns / 8; i += kThreads) {
    const int row = i / (columns / 8), column = i % (columns / 8) * 8;
    const int k = (column / kBlockUnit * plan.cluster + rank) * kBlockUnit + column % kBlockUnit;
    const bool inside = k < p.in_features;
    copy_async(rows + row * stride + column,
               x + static_cast<int64_t>(row) * p.in_features + (inside ? k : 0), inside);
  }
  commit_copies();
  wait_copies<0>();
}

// Starts the copy of the norm's weight, which depends on no predecessor.
__device__ void copy_norm(const SkinnyProduct& p, float* norm) {
  for (int k = threadIdx.x * 4; k < p.in_features; k += kThreads * 4)
    copy_async(norm + k, p.norm.weight + k, true);
}

// The rounded norm of the residual's rows into shared memory. Few rows are shared by several warps
// each, so that all of a thread's loads are in flight at once. `norm` is the weight and room for
// the parts' sums.
__device__ void normalise_rows(const SkinnyProduct& p, const Plan& plan, __nv_bfloat16* rows,
                               float* norm) {
  constexpr int kKept = 8;  // vectors of 4 that a lane keeps between the two passes
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Warps that share a row.
  const int parts = p.fixed_order || p.rows > 4 ? 1 : p.rows > 2 ? 2 : p.rows > 1 ? 4 : 8;
  const int first = (warp % parts * 32 + lane) * 4, step = parts * 128;
  const int columns = plan.units * kBlockUnit, stride = columns + kPad;
  float* sums = norm + p.in_features;  // [kWarps]
  for (int round = 0; round < p.rows; round += kWarps / parts) {
    const int row = round + warp / parts;
    const bool exists = row < p.rows;
    const float* x = static_cast<const float*>(p.x) + static_cast<int64_t>(row) * p.in_features;
    float kept[kKept][4] = {};
    float sum = 0;
    if (exists) {
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
        if (first + j * step < p.in_features) load_vector(kept[j], x + first + j * step);
      }
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += kept[j][e] * kept[j][e];
      }
      for (int k = first + kKept * step; k < p.in_features; k += step) {
        float value[4];
        load_vector(value, x + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += value[e] * value[e];
      }
    }
    sum = warp_sum(sum);
    if (parts > 1) {
      if (lane == 0) sums[warp] = sum;
      __syncthreads();
      sum = 0;
      for (int part = 0; part < parts; ++part) sum += sums[warp / parts * parts + part];
    }
    if (!exists) continue;
    const float scale = rsqrtf(sum / static_cast<float>(p.in_features) + p.norm.eps);
    const auto finish = [&](float(&value)[4], int k) {
      float factor[4] = {};
      if (k < p.in_features) load_vector(factor, norm + k);
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] *= scale * (p.norm.offset + factor[e]);
      store_vector(rows + row * stride + k, value);
    };
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (first + j * step < columns) finish(kept[j], first + j * step);
    }
    for (int k = first + kKept * step; k < columns; k += step) {
      float value[4] = {};
      if (k < p.in_features) load_vector(value, x + k);
      finish(value, k);
    }
  }
}

// kRowSets: sets of 8 rows.
template <int kTiles, int kRowSets>
struct Sums {
  static constexpr int kRowTiles = (kRowSets + 1) / 2;
  float d[kRowTiles][kTiles][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int e = 0; e < 4; ++e) d[m][tile][e] = 0;
  }

  // One unit: `x` points at this lane's 8 elements of row lane / 4.
  __device__ void add(const __nv_bfloat16* x, int stride, const WeightStream<kTiles>& stream,
                      int stage) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 low[kRowTiles], high[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const __nv_bfloat16* row = x + m * 16 * stride + half * 32;
        low[m] = *reinterpret_cast<const uint4*>(row);
        high[m] = kRowSets == 1 ? make_uint4(0, 0, 0, 0)
                                : *reinterpret_cast<const uint4*>(row + 8 * stride);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 w = *stream.slot(stage, tile, half);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply(d[m][tile], low[m].x, high[m].x, low[m].y, high[m].y, w.x, w.y);
          multiply(d[m][tile], low[m].z, high[m].z, low[m].w, high[m].w, w.z, w.w);
        }
      }
    }
  }

  // To partial[8 kRowSets][8 kTiles] of this warp.
  __device__ void store(float* partial) const {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float* target = partial + (m * 16 + row) * kTiles * 8 + tile * 8 + column;
        *reinterpret_cast<float2*>(target) = make_float2(d[m][tile][0], d[m][tile][1]);
        if constexpr (kRowSets > 1) {
          *reinterpret_cast<float2*>(target + 64 * kTiles) =
              make_float2(d[m][tile][2], d[m][tile][3]);
        }
      }
    }
  }
};

// The warps' sums of one element, in the order of the warps; with clusters, first each block's
// own, then those in the order of the blocks.
template <int kTiles, int kRowSets>
__device__ float block_total(const float* partials, int index) {
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp)
    total += partials[warp * (kRowSets * kTiles * 64) + index];
  return total;
}

// What a thread's first output adds to, fetched before the product is there.
template <int kTiles>
__device__ float old_output(const SkinnyProduct& p, const Plan& plan, int rank) {
  if (p.epilogue != Epilogue::kAdd) return 0;
  const int share = kTiles * 8 / plan.cluster;
  const int row = threadIdx.x / share;
  const int feature =
      static_cast<int>(blockIdx.x) / plan.cluster * kTiles * 8 + rank * share + threadIdx.x % share;
  if (row >= p.rows || feature >= p.out_features) return 0;
  return static_cast<const float*>(p.out)[static_cast<int64_t>(row) * p.out_features + feature];
}

__device__ void finish(const SkinnyProduct& p, int row, int feature, float y, const float* old) {
  if (p.bias != nullptr) y += p.bias[feature];
  const int64_t i = static_cast<int64_t>(row) * p.out_features + feature;
  if (p.epilogue == Epilogue::kAdd) {
    auto* out = static_cast<float*>(p.out) + i;
    *out = (old != nullptr ? *old : *out) + round_to_bfloat16(y);
  } else if (p.out_dtype == DType::kFloat32) {
    static_cast<float*>(p.out)[i] = y;
  } else {
    store(static_cast<__nv_bfloat16*>(p.out) + i, y);
  }
}

__device__ void finish_pair(const SkinnyProduct& p, int row, int feature, float gate, float up) {
  const int width = p.out_features / 2;
  if (p.bias != nullptr) {
    gate += p.bias[feature];
    up += p.bias[width + feature];
  }
  gate = round_to_bfloat16(gate);
  up = round_to_bfloat16(up);
  const float activated = p.activation == Activation::kSilu ? activate<Activation::kSilu>(gate)
                          : p.activation == Activation::kGelu
                              ? activate<Activation::kGelu>(gate)
                              : activate<Activation::kGeluTanh>(gate);
  store(static_cast<__nv_bfloat16*>(p.out) + static_cast<int64_t>(row) * width + feature,
        activated * up);
}

// Adds up the warps' partial sums of one group of features and writes its outputs.
template <int kTiles, int kRowSets>
__device__ void reduce_and_finish(const SkinnyProduct& p, const Plan& plan, int rank, int group,
                                  float* partials, float old) {
  constexpr int kFeatures = kTiles * 8;
  const auto is_first = [&](int i) {
    return i == static_cast<int>(threadIdx.x) &&
           group == static_cast<int>(blockIdx.x) / plan.cluster;
  };
  if (plan.cluster > 1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    namespace cg = cooperative_groups;
    const cg::cluster_group cluster = cg::this_cluster();
    // Each block adds its own, then writes out its share of the features.
    float* totals = partials + kWarps * kRowSets * kTiles * 64;
    for (int i = threadIdx.x; i < p.rows * kFeatures; i += kThreads)
      totals[i] = block_total<kTiles, kRowSets>(partials, i);
    cluster.sync();
    const int share = kFeatures / plan.cluster;
    for (int i = threadIdx.x; i < p.rows * share; i += kThreads) {
      const int row = i / share, column = rank * share + i % share;
      float total = 0;
      for (int block = 0; block < plan.cluster; ++block)
        total += *cluster.map_shared_rank(totals + row * kFeatures + column, block);
      if (group * kFeatures + column < p.out_features)
        finish(p, row, group * kFeatures + column, total, is_first(i) ? &old : nullptr);
    }
    cluster.sync();  // a block's totals are read until then
#endif
  } else if (p.epilogue == Epilogue::kActAndMul) {
    constexpr int kPairs = kFeatures / 2;
    for (int i = threadIdx.x; i < p.rows * kPairs; i += kThreads) {
      const int row = i / kPairs, column = i % kPairs;
      const int at = row * kFeatures + column;
      if (group * kPairs + column >= p.out_features / 2) continue;
      finish_pair(p, row, group * kPairs + column, block_total<kTiles, kRowSets>(partials, at),
                  block_total<kTiles, kRowSets>(partials, at + kPairs));
    }
  } else {
    for (int i = threadIdx.x; i < p.rows * kFeatures; i += kThreads) {
      const int row = i / kFeatures, column = i % kFeatures;
      if (group * kFeatures + column >= p.out_features) continue;
      finish(p, row, group * kFeatures + column, block_total<kTiles, kRowSets>(partials, i),
             is_first(i) ? &old : nullptr);
    }
  }
}

template <int kTiles, int kRowSets>
__global__ void __launch_bounds__(kThreads)
    skinny_kernel(const __grid_constant__ SkinnyProduct p, const __grid_constant__ Plan plan) {
  extern __shared__ uint4 shared[];
  constexpr int kDepth = kStages<kTiles>;
  const int rank = static_cast<int>(blockIdx.x) % plan.cluster;
  WeightStream<kTiles> stream(p, plan, shared, rank);
  auto* rows = reinterpret_cast<__nv_bfloat16*>(shared + plan.stages * kStageSlots<kTiles>);
  const int stride = plan.units * kBlockUnit + kPad;
  auto* partials = reinterpret_cast<float*>(rows + kRowSets * 8 * stride);
  auto* norm = partials + plan.sum_floats;
  if (p.norm.weight != nullptr) copy_norm(p, norm);
  for (int stage = 0; stage < kDepth; ++stage) stream.fetch(stage);
  release_successor();
  wait_for_predecessor();

  const float old = old_output<kTiles>(p, plan, rank);
  if (p.norm.weight != nullptr) {
    wait_copies<kDepth - 1>();  // the norm's weight came with the first stage
    __syncthreads();
    normalise_rows(p, plan, rows, norm);
  } else {
    copy_rows(p, plan, rank, rows);
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const __nv_bfloat16* x = rows + lane / 4 * stride + warp * kUnit + lane % 4 * 8;
  const int blocks = static_cast<int>(gridDim.x) / plan.cluster;
  int stage = 0;
  for (int group = static_cast<int>(blockIdx.x) / plan.cluster; group < plan.groups;
       group += blocks) {
    Sums<kTiles, kRowSets> sums;
    sums.clear();
    for (int unit = 0; unit < plan.units; ++unit) {
      wait_copies<kDepth - 1>();
      sums.add(x + unit * kBlockUnit, stride, stream, stage);
      stream.fetch(stage);
      stage = stage + 1 == kDepth ? 0 : stage + 1;
    }
    sums.store(partials + warp * (kRowSets * kTiles * 64));
    __syncthreads();
    reduce_and_finish<kTiles, kRowSets>(p, plan, rank, group, partials, old);
    __syncthreads();  // the partial sums are read until then
  }
}

int stages_of(int tiles) {
  return tiles == 1 ? kStages<1> : tiles == 2 ? kStages<2> : tiles == 4 ? kStages<4> : kStages<6>;
}

int row_sets_of(int rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : 4; }

// How to divide a product of these tiles and this cluster.
Plan make_plan(const SkinnyProduct& p, int tiles, int cluster, int multiprocessors) {
  Plan plan;
  plan.tiles = tiles;
  plan.rows_at_once = p.rows;
  plan.cluster = cluster;
  const bool pairs = p.epilogue == Epilogue::kActAndMul;
  plan.groups = div_up(pairs ? p.out_features / 2 : p.out_features, tiles * (pairs ? 4 : 8));
  plan.units = div_up(p.in_features, kBlockUnit * cluster);
  const int row_sets = row_sets_of(p.rows);
  const int64_t x_bytes = int64_t{row_sets} * 8 * (plan.units * kBlockUnit + kPad) * 2;
  plan.sum_floats = row_sets * 8 * tiles * 8 * (kWarps + (cluster > 1));
  const int64_t norm_bytes = p.norm.weight == nullptr ? 0 : (p.in_features + kWarps) * 4;
  const int rounds = div_up(int64_t{plan.groups} * cluster, multiprocessors);
  plan.stages = static_cast<int>(std::min<int64_t>(stages_of(tiles), int64_t{rounds} * plan.units));
  plan.shared_bytes =
      x_bytes + plan.sum_floats * 4 + norm_bytes + int64_t{plan.stages} * tiles * 2 * kThreads * 16;
  const int resident = plan.shared_bytes + kReservedBytes <= kSharedBytes / 2 ? 2 : 1;
  plan.blocks = std::min(plan.groups * cluster, multiprocessors * resident);
  // Elements that the busiest multiprocessor reads, with a cluster's exchange in the same coin.
  plan.cost = int64_t{rounds} * tiles * 8 * plan.units * kBlockUnit +
              int64_t{p.rows} * plan.units * kBlockUnit + (cluster > 1 ? 6000 : 0);
  const bool fits = plan.shared_bytes + kReservedBytes <= kSharedBytes;
  const bool shares_k = supports_clusters() && p.norm.weight == nullptr && !pairs &&
                        tiles % cluster == 0 && rounds == 1;
  if (!fits || (cluster > 1 && !shares_k) || (pairs && tiles % 2 != 0)) plan.tiles = 0;
  return plan;
}

Plan best_plan(const SkinnyProduct& p, int multiprocessors) {
  Plan best;
  for (const int tiles : {6, 4, 2, 1}) {
    for (const int cluster : {1, 2, 4}) {
      const Plan plan = make_plan(p, tiles, cluster, multiprocessors);
      if (plan.tiles > 0 && (best.tiles == 0 || plan.cost < best.cost)) best = plan;
    }
  }
  return best;
}

// No tiles = not for this kernel.
Plan plan_of(const SkinnyProduct& p, int multiprocessors) {
  if (p.in_features % 8 != 0) return {};
  if (!p.fixed_order) {
    if (p.rows > kMaxSkinnyRows) return {};
    const Plan plan = best_plan(p, multiprocessors);
    // cuBLASLt streams very large weights as well.
    return plan.groups > kMaxRounds * plan.blocks ? Plan{} : plan;
  }
  // One division of K for any number of rows: that of the most rows that fit at once.
  SkinnyProduct part = p;
  for (part.rows = kFixedOrderRows; part.rows >= 8; part.rows /= 2) {
    const Plan plan = best_plan(part, multiprocessors);
    if (plan.tiles > 0) return plan;
  }
  return {};
}

template <int kTiles>
void launch_tiles(cudaStream_t stream, const SkinnyProduct& p, const Plan& plan) {
  const auto run = [&](auto kernel) {
    launch_clusters(stream, kernel, plan.blocks, kThreads, plan.cluster,
                    static_cast<size_t>(plan.shared_bytes), p, plan);
  };
  switch (row_sets_of(p.rows)) {
    case 1:
      return run(skinny_kernel<kTiles, 1>);
    case 2:
      return run(skinny_kernel<kTiles, 2>);
    default:
      return run(skinny_kernel<kTiles, 4>);
  }
}

void launch_plan(cudaStream_t stream, const SkinnyProduct& product, const Plan& plan) {
  switch (plan.tiles) {
    case 1:
      return launch_tiles<1>(stream, product, plan);
    case 2:
      return launch_tiles<2>(stream, product, plan);
    case 4:
      return launch_tiles<4>(stream, product, plan);
    default:
      return launch_tiles<6>(stream, product, plan);
  }
}

}  // namespace

bool is_skinny(const SkinnyProduct& product, int multiprocessors) {
  return plan_of(product, multiprocessors).tiles > 0;
}

bool launch_skinny(cudaStream_t stream, const SkinnyProduct& product, int multiprocessors) {
  const Plan plan = plan_of(product, multiprocessors);
  if (plan.tiles == 0) return false;
  const bool pairs = product.epilogue == Epilogue::kActAndMul;
  const int width = pairs ? product.out_features / 2 : product.out_features;
  const bool is_float_out =
      product.epilogue == Epilogue::kAdd || (!pairs && product.out_dtype == DType::kFloat32);
  const bool is_float_x = product.norm.weight != nullptr;
  SkinnyProduct part = product;
  for (int row = 0; row < product.rows; row += plan.rows_at_once) {
    part.rows = std::min(plan.rows_at_once, product.rows - row);
    part.x = static_cast<const char*>(product.x) +
             int64_t{row} * product.in_features * (is_float_x ? 4 : 2);
    part.out = static_cast<char*>(product.out) + int64_t{row} * width * (is_float_out ? 4 : 2);
    launch_plan(stream, part, plan);
  }
  return true;
}

}  // namespace nanovllm::cuda
