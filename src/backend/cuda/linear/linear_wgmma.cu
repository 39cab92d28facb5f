// Matrix products of 9 to 128 rows on Hopper: y[R,N] = x[R,K] W[N,K]^T, bound by the 2 N K bytes of
// weights, if all of a block's weights are on their way at once and do not wait for x.
//
// A block computes 64 features (the tensor cores' M) of all rows (their N), so that few rows waste
// nothing; K is shared by the blocks of a cluster where features alone are too few blocks, and
// their sums are sent to the block that finishes a row and added there in a fixed order. A warp has
// the copy engine bring the weights before the kernel waits for its predecessor (weights depend on
// nothing), another one x as soon as it is there: a block that finds room late has both on their
// way side by side. Every block reads its share of K of all rows of x, R K / k_blocks elements, out
// of L2. What is left is the time from one product to the next, of threads that each do little: see
// linear_wgmma_epilogue.cuh.
#include <type_traits>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/linear/linear_wgmma_epilogue.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kConsumers = kGroups * kGroupThreads;
// A warp each for the copies of the weight and of x, and for the norm.
constexpr int kWeightWarp = kConsumers / 32, kXWarp = kWeightWarp + 1;
constexpr int kThreads = kConsumers + 96;
[[maybe_unused]] constexpr int kStep = 16;  // of K, at once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  Barrier w[kMaxCopies];     // a copy of the weight's is there
  Barrier x[kMaxCopies];     // a unit is there
  Barrier free[kMaxCopies];  // a unit of x is used up
  Barrier sums;              // the other blocks' have come
};

// By one warp.
__device__ inline void init_barriers(const WgmmaPlan& plan, Barriers& barriers) {
  const int lane = threadIdx.x % 32;
  if (lane < plan.w_copies) barriers.w[lane].init(1);
  if (lane < plan.x_stages) {
    barriers.x[lane].init(1);
    barriers.free[lane].init_warps(kGroupThreads / 32);
  }
  if (lane == 31) {
    barriers.sums.init(1);
    barriers.sums.expect(plan.rows * kTileFeatures * 4);
  }
  publish_barriers();
  __syncwarp();
}

// A place among the stages, and the parity of the round.
struct Turn {
  int stage;
  uint32_t parity = 0;

  __device__ explicit Turn(int first = 0, int stages = kGroups) : stage(first) {
    if (stage >= stages) next(0, stages);
  }
  __device__ void next(int count, int stages) {
    stage += count;
    if (stage >= stages) {
      stage -= stages;
      parity ^= 1;
    }
  }
};

// The copies of the weight, by one thread.
__device__ inline void fetch_weights(const CUtensorMap& map, const WgmmaPlan& plan, char* shared,
                                     int feature, int first_chunk, Barriers& barriers) {
#  pragma unroll 1
  for (int copy = 0; copy < plan.w_copies; ++copy) {
    barriers.w[copy].expect(plan.w_bytes);
    load_box<true>(shared + copy * plan.w_bytes, map, feature,
                   first_chunk + copy * (plan.unit << plan.w_shift), barriers.w[copy]);
  }
}

// Before the kernel waits, so that nothing but the copies is left to do after.
__device__ inline void announce_x(const WgmmaPlan& plan, Barriers& barriers) {
#  pragma unroll 1
  for (int unit = 0; unit < plan.x_stages; ++unit) barriers.x[unit].expect(plan.x_bytes);
}

// The copies of x, by one thread.
__device__ inline void fetch_x(const CUtensorMap& map, const WgmmaPlan& plan, char* shared,
                               int first_chunk, Barriers& barriers) {
  Turn turn;
#  pragma unroll 1
  for (int unit = 0; unit < plan.units; ++unit, turn.next(1, plan.x_stages)) {
    Barrier& barrier = barriers.x[turn.stage];
    if (unit >= plan.x_stages) {
      barriers.free[turn.stage].wait(turn.parity ^ 1);
      barrier.expect(plan.x_bytes);
    }
    load_box<false>(shared + plan.x_offset + turn.stage * plan.x_bytes, map, 0,
                    first_chunk + unit * plan.unit, barrier);
  }
}

// One warpgroup's products: of every kGroups-th unit.
template <int kRows>
__device__ void multiply(float (&sums)[kRows / 2], const WgmmaPlan& plan, char* shared, int group,
                         Barriers& barriers) {
  constexpr int kXChunk = kRows * kChunk * 2 / 16;  // in the coin of descriptions
  const int w_chunk = plan.features * kChunk * 2 / 16, x_unit = plan.x_bytes / 16;
  const uint64_t w = describe_tile(shared_address(shared));
  const uint64_t x = describe_tile(shared_address(shared) + plan.x_offset);
  Turn turn(group, plan.x_stages);
#  pragma unroll 1
  for (int unit = group; unit < plan.units; unit += kGroups) {
    barriers.w[unit >> plan.w_shift].wait(0);
    barriers.x[turn.stage].wait(turn.parity);
    uint64_t a = w + unit * plan.unit * w_chunk, b = x + turn.stage * x_unit;
    begin_products();
#  pragma unroll 1
    for (int chunk = 0; chunk < plan.unit; ++chunk, a += w_chunk, b += kXChunk) {
#  pragma unroll
      for (int step = 0; step < kChunk / kStep; ++step) {
        multiply_tile(sums, a + step * 2, b + step * 2);
      }
    }
    commit_products();
    // Given back at once where it is wanted again: the other group keeps the tensor cores busy.
    if (unit + plan.x_stages < plan.units) {
      wait_products<0>();
      barriers.free[turn.stage].arrive_warp();
    }
    turn.next(kGroups, plan.x_stages);
  }
  wait_products<0>();
}

template <int kRows>
__device__ void stage_sums(const float (&sums)[kRows / 2], float* staged) {
  const int thread = threadIdx.x % kGroupThreads;
  float* target = staged + thread % 4 * 2 * kStagedStride + thread / 32 * 16 + thread % 32 / 4;
#  pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#  pragma unroll
    for (int e = 0; e < 4; ++e) {
      target[(j * 8 + e % 2) * kStagedStride + e / 2 * 8] = sums[j * 4 + e];
    }
  }
}

// Sends the groups' staged sums to the blocks that finish their rows.
template <int kRows, int kKBlocks>
__device__ void send_sums(int rank, const float* staged, float* received, const Barrier& barrier) {
  constexpr int kLanes = kTileFeatures / 4, kTurnRows = kConsumers / kLanes;
  constexpr int kShare = kRows / kKBlocks;
  const int column = threadIdx.x % kLanes * 4;
#  pragma unroll
  for (int i = 0; i < kRows / kTurnRows; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kLanes + i * kTurnRows;
    float x[4];
    read_sums<kGroups, kRows>(x, staged, row, column);
    store_remote(received + (rank * kShare + row % kShare) * kStagedStride + column, barrier,
                 row / kShare, make_float4(x[0], x[1], x[2], x[3]));
  }
}

// The norm's factor of every row, by one warp.
__device__ inline void fetch_scale(const WgmmaProduct& p, float* scale) {
#  pragma unroll 1
  for (int row = threadIdx.x % 32; row < p.rows; row += 32) {
    float sum = 0;
#  pragma unroll 16
    for (int part = 0; part < p.norm.parts; ++part) sum += p.norm.squares[part * p.rows + row];
    scale[row] = rsqrtf(sum / static_cast<float>(p.in_features) + p.norm.norm.eps);
  }
}

template <int kCount>
__device__ void arrive_threads(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}
constexpr int kUsedUp = 1, kStaged = 2;  // barriers of the consumers, and the norm's warp

template <int kRows, int kKBlocks, typename Epilogue>
__device__ void consume(const WgmmaPlan& plan, int rank, char* shared, Barriers& barriers,
                        Epilogue& epilogue) {
  wait_for_predecessor();
  epilogue.fetch();
  // Of the first lane, so that the compiler sees that all agree: else it makes each product wait
  // for the one before ("wgmma.mma_async instructions are serialized").
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  float sums[kRows / 2] = {};
  multiply<kRows>(sums, plan, shared, group, barriers);
  // The sums go where the operands were.
  auto* staged = reinterpret_cast<float*>(shared);
  const auto* scale = reinterpret_cast<const float*>(shared + plan.scale_offset);
  sync_threads<kConsumers>(kUsedUp);
  stage_sums<kRows>(sums, staged + group * kRows * kStagedStride);
  sync_threads<kConsumers + 32>(kStaged);
  if constexpr (kKBlocks == 1) {
    epilogue.finish(staged, scale);
  } else {
    auto* received = reinterpret_cast<float*>(shared + plan.received_offset);
    wait_cluster();
    send_sums<kRows, kKBlocks>(rank, staged, received, barriers.sums);
    barriers.sums.wait(0);
    epilogue.finish(received, scale);
  }
}

#endif

template <int kRows, int kKBlocks, bool kPairs>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map, const __grid_constant__ WgmmaProduct p,
                 const __grid_constant__ WgmmaPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char dynamic[];
  __shared__ Barriers barriers;
  release_successor();
  char* shared = dynamic + (-shared_address(dynamic) & 1023);
  const int tile = static_cast<int>(blockIdx.y), rank = static_cast<int>(blockIdx.x);
  const int first_chunk = rank * plan.units * plan.unit;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool first_lane = threadIdx.x % 32 == 0;
  if (warp == kWeightWarp) {
    if (first_lane) {
      prefetch_map(w_map);
      prefetch_map(x_map);
    }
    init_barriers(plan, barriers);
  }
  __syncthreads();
  if constexpr (kKBlocks > 1) arrive_cluster();
  if (threadIdx.x < kConsumers) {
    constexpr int kShare = kRows / kKBlocks, kParts = kKBlocks == 1 ? kGroups : kKBlocks;
    using Epilogue = std::conditional_t<kPairs, PairEpilogue<kConsumers, kParts, kShare>,
                                        RowEpilogue<kConsumers, kParts, kShare>>;
    Epilogue epilogue(p, plan, tile, rank * kShare);
    consume<kRows, kKBlocks>(plan, rank, shared, barriers, epilogue);
    return;
  }
  if (warp == kWeightWarp) {
    const int part_features = kPairs ? plan.features / 2 : plan.features;
    if (first_lane) fetch_weights(w_map, plan, shared, tile * part_features, first_chunk, barriers);
  } else if (warp == kXWarp) {
    if (first_lane) {
      announce_x(plan, barriers);
      wait_for_predecessor();
      fetch_x(x_map, plan, shared, first_chunk, barriers);
    }
  } else {
    wait_for_predecessor();
    if (p.norm.weighted != nullptr) {
      fetch_scale(p, reinterpret_cast<float*>(shared + plan.scale_offset));
    }
    arrive_threads<kConsumers + 32>(kStaged);
  }
  if constexpr (kKBlocks > 1) {
    __syncwarp();
    wait_cluster();
  }
#endif
}

template <int kRows, int kKBlocks, bool kPairs>
void launch_kernel(cudaStream_t stream, const WgmmaProduct& p, const WgmmaPlan& plan) {
  constexpr int kParts = kPairs ? 2 : 1;
  const CUtensorMap w_map = make_tensor_map(p.weight, p.out_features, p.in_features, kParts,
                                            {plan.features / kParts, plan.unit << plan.w_shift});
  const CUtensorMap x_map = make_tensor_map(p.norm.weighted != nullptr ? p.norm.weighted : p.x,
                                            p.rows, p.in_features, 1, {kRows, plan.unit});
  launch_clusters(stream, wgmma_kernel<kRows, kKBlocks, kPairs>, dim3(kKBlocks, plan.tiles),
                  kThreads, kKBlocks, plan.shared_bytes, w_map, x_map, p, plan);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void launch_wgmma(cudaStream_t stream, const WgmmaProduct& p, int num_multiprocessors) {
  NANOVLLM_CHECK(is_aligned(p.x) && is_aligned(p.out));
  const WgmmaPlan plan = plan_wgmma(p, num_multiprocessors);
  with_constant<16, 32, 48, 64, 96, 128>(plan.rows, [&]<int kRows>() {
    with_constant<1, 2, 4, 8>(plan.k_blocks, [&]<int kKBlocks>() {
      with_constant<false, true>(p.epilogue == Epilogue::kActAndMul, [&]<bool kPairs>() {
        launch_kernel<kRows, kKBlocks, kPairs>(stream, p, plan);
      });
    });
  });
}

}  // namespace nanovllm::cuda
