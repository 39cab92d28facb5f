// Matrix products with few rows: y[R,N] = x[R,K] W[N,K]^T, bound by the 2 N K bytes of weights.
//
// A block computes 8 kTiles features of all rows; its warps share K, 64 elements at a time in turn,
// and their sums are added in a fixed order at the end. Features are many enough blocks to fill the
// device, so that no sums meet in device memory; where N is small, the blocks of a cluster share K
// as well and add their sums through distributed shared memory. Rows that do not fit into shared
// memory are left to others, or come in slices, again for each group of features, where sums must
// have a fixed order.
//
// Every thread copies exactly the weights that its own tensor core operands hold, 16 bytes at a
// time, into slots of shared memory that it alone reads: no barrier stands between the stream of
// weights and the products. The first slots are filled before the kernel waits for its predecessor
// (weights depend on nothing), so that a chain of products streams without gaps. A thread's 16
// bytes are 8 neighbours along K where mma.m16n8k16 wants four pairs of two products; as x is read
// in the same permuted order, the sums are over the same pairs.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/linear/linear_skinny_stream.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

using namespace skinny;

// kRowSets: sets of 8 rows.
template <int kTiles, int kRowSets>
struct Sums {
  static constexpr int kRowTiles = (kRowSets + 1) / 2;
  float d[kRowTiles][kTiles][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d[m][tile][e] = 0;
      }
    }
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
          mma_bf16(d[m][tile], {low[m].x, high[m].x, low[m].y, high[m].y}, w.x, w.y);
          mma_bf16(d[m][tile], {low[m].z, high[m].z, low[m].w, high[m].w}, w.z, w.w);
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
  for (int warp = 0; warp < kWarps; ++warp) {
    total += partials[warp * (kRowSets * kTiles * 64) + index];
  }
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
  store(static_cast<__nv_bfloat16*>(p.out) + static_cast<int64_t>(row) * width + feature,
        gate_and_mul(p.activation, round_to_bfloat16(gate), round_to_bfloat16(up)));
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
    for (int i = threadIdx.x; i < p.rows * kFeatures; i += kThreads) {
      totals[i] = block_total<kTiles, kRowSets>(partials, i);
    }
    cluster.sync();
    const int share = kFeatures / plan.cluster;
    for (int i = threadIdx.x; i < p.rows * share; i += kThreads) {
      const int row = i / share, column = rank * share + i % share;
      float total = 0;
      for (int block = 0; block < plan.cluster; ++block) {
        total += *cluster.map_shared_rank(totals + row * kFeatures + column, block);
      }
      if (group * kFeatures + column < p.out_features) {
        finish(p, row, group * kFeatures + column, total, is_first(i) ? &old : nullptr);
      }
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
  const int stride = plan.x_units * kBlockUnit + kPad;
  auto* partials = reinterpret_cast<float*>(rows + kRowSets * 8 * stride);
  auto* norm = partials + plan.sum_floats;
  if (p.norm.weight != nullptr) copy_norm(p, norm);
  for (int stage = 0; stage < kDepth; ++stage) stream.fetch(stage);
  release_successor();
  wait_for_predecessor();

  const float old = old_output<kTiles>(p, plan, rank);
  if (p.norm.weight != nullptr) {
    wait_for_copies<kDepth - 1>();  // the norm's weight came with the first stage
    __syncthreads();
    normalise_rows(p, plan, rows, norm);
  } else {
    copy_rows(p, plan, rank, 0, rows);
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const __nv_bfloat16* x = rows + lane / 4 * stride + warp * kUnit + lane % 4 * 8;
  const int blocks = static_cast<int>(gridDim.x) / plan.cluster;
  int stage = 0, held = 0;  // the first unit whose columns of x are there
  for (int group = static_cast<int>(blockIdx.x) / plan.cluster; group < plan.groups;
       group += blocks) {
    Sums<kTiles, kRowSets> sums;
    sums.clear();
#pragma unroll 1
    for (int first = 0; first < plan.units; first += plan.x_units) {
      if (first != held) {
        __syncthreads();  // the columns before are read until then
        copy_rows(p, plan, rank, first, rows);
        __syncthreads();
        held = first;
      }
      const int count = min(plan.x_units, plan.units - first);
      for (int unit = 0; unit < count; ++unit) {
        wait_for_copies<kDepth - 1>();
        sums.add(x + unit * kBlockUnit, stride, stream, stage);
        stream.fetch(stage);
        stage = stage + 1 == kDepth ? 0 : stage + 1;
      }
    }
    sums.store(partials + warp * (kRowSets * kTiles * 64));
    __syncthreads();
    reduce_and_finish<kTiles, kRowSets>(p, plan, rank, group, partials, old);
    __syncthreads();  // the partial sums are read until then
  }
}

template <int kTiles>
void launch_tiles(cudaStream_t stream, const SkinnyProduct& p, const Plan& plan) {
  const auto run = [&](auto kernel) {
    launch_clusters(stream, kernel, plan.blocks, kThreads, plan.cluster,
                    static_cast<size_t>(plan.shared_bytes), p, plan);
  };
  with_constant<1, 2, 4>(row_sets_of(p.rows),
                         [&]<int kRowSets>() { run(skinny_kernel<kTiles, kRowSets>); });
}

}  // namespace

void launch_skinny(cudaStream_t stream, const SkinnyProduct& product, const Plan& plan) {
  NANOVLLM_CHECK(plan.tiles > 0);
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
    with_constant<1, 2, 4, 6>(plan.tiles,
                              [&]<int kTiles>() { launch_tiles<kTiles>(stream, part, plan); });
  }
}

}  // namespace nanovllm::cuda
