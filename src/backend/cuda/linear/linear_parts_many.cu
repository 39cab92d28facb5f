// Products of 9 rows and more in parts, on Hopper: y[R,N] = x[R,K] W[N,K]^T, see linear_parts.h.
//
// A block multiplies 128 features, 64 a warpgroup, by up to 128 rows. A thread has two sets of
// sums: of the part under way, and of those before. A warp has the copy engine bring weights and
// rows to a ring of stages, 64 elements of K each from the part's first on, of which the tensor
// cores take as many steps as the part has. Where tiles are too few blocks, those of a cluster take
// neighbouring parts and send each part's sums to the block that finishes a row, which adds them in
// order; else blocks go from tile to tile, and weights of the next come while the last is stored.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/device/wgmma_weights.cuh"
#include "backend/cuda/linear/linear_parts.h"

namespace nanovllm::cuda {
namespace {

constexpr int kGroupThreads = 128, kConsumerGroups = 2;
constexpr int kManyThreads = kConsumerGroups * kGroupThreads + 32;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kStageK = 64;  // elements of K of a stage
constexpr int kStageSteps = kStageK / kPartStep;
constexpr int kWeightBytes = kPartsTile * kStageK * 2;  // of a stage

using RingBarriers = StageBarriers<kMaxPartsStages>;

struct RingTurn {
  int stages;
  int stage = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// d[64 features, n rows] += a[64 features, 16] b[n rows, 16], or = where not adds.
__device__ inline void multiply_step(float (&d)[8], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NANOVLLM_NAMES_8
      "}, %8, %9, p, 1, 1, 0, 0;\n}"
      : NANOVLLM_SUMS_8(0)
      : "l"(a), "l"(b), "r"(adds));
}
__device__ inline void multiply_step(float (&d)[16], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NANOVLLM_NAMES_16
      "}, %16, %17, p, 1, 1, 0, 0;\n}"
      : NANOVLLM_SUMS_16(0)
      : "l"(a), "l"(b), "r"(adds));
}
__device__ inline void multiply_step(float (&d)[32], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANOVLLM_NAMES_32
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : NANOVLLM_SUMS_32(0)
      : "l"(a), "l"(b), "r"(adds));
}
__device__ inline void multiply_step(float (&d)[64], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANOVLLM_NAMES_64
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : NANOVLLM_SUMS_32(0), NANOVLLM_SUMS_32(32)
      : "l"(a), "l"(b), "r"(adds));
}

// What a block does of the product: tiles, and of each the parts [first_part, last_part).
template <int kRows, int kCluster>
struct ManyBlock {
  static constexpr int kStageBytes = kWeightBytes + kRows * kStageK * 2;

  const PartsProduct& p;
  const ManyPartsPlan& plan;
  char* shared;
  RingBarriers& barriers;
  int rank, first_part, last_part, first_tile, tile_step, tiles;

  __device__ ManyBlock(const PartsProduct& product, const ManyPartsPlan& division, char* memory,
                       RingBarriers& ring)
      : p(product), plan(division), shared(memory), barriers(ring) {
    rank = static_cast<int>(blockIdx.x) % kCluster;
    const int each = kNumParts / kCluster;
    first_part = rank * each;
    last_part = first_part + each;
    first_tile = static_cast<int>(blockIdx.x) / kCluster;
    tile_step = static_cast<int>(gridDim.x) / kCluster;
    tiles = plan.feature_tiles * plan.row_tiles;
  }

  // Neighbouring blocks have the same features.
  __device__ int feature_of(int tile) const { return tile / plan.row_tiles * kPartsTile; }
  __device__ int row_of(int tile) const { return tile % plan.row_tiles * kRows; }
  __device__ float* received() const {
    return reinterpret_cast<float*>(shared + plan.received_offset);
  }
};

// Calls f(tile, column) for each chunk.
template <int kRows, int kCluster, typename F>
__device__ void for_each_chunk(const ManyBlock<kRows, kCluster>& b, const F& f) {
#  pragma unroll 1
  for (int tile = b.first_tile; tile < b.tiles; tile += b.tile_step) {
#  pragma unroll 1
    for (int part = b.first_part; part < b.last_part; ++part) {
      const PartSteps steps = steps_of_part(b.p.in_features, part);
#  pragma unroll 1
      for (int step = 0; step < steps.count; step += kStageSteps) {
        if (!f(tile, (steps.first + step) * kPartStep)) return;
      }
    }
  }
}

// By one thread. The first stages' weights come before the predecessor's results are there.
template <int kRows, int kCluster>
__device__ void produce(const ManyBlock<kRows, kCluster>& b, const CUtensorMap& w_map,
                        const CUtensorMap& x_map) {
  using Block = ManyBlock<kRows, kCluster>;
  const auto stage_of = [&](const RingTurn& turn) {
    return b.shared + turn.stage * Block::kStageBytes;
  };
  // Weights of few rows are read once.
  const auto load_weights = [&](const RingTurn& turn, int tile, int column) {
    const Barrier& full = b.barriers.full[turn.stage];
    b.barriers.full[turn.stage].expect(Block::kStageBytes);
    if (b.plan.row_tiles == 1) {
      load_row_box<true>(stage_of(turn), w_map, column, b.feature_of(tile), full);
    } else {
      load_row_box<false>(stage_of(turn), w_map, column, b.feature_of(tile), full);
    }
  };
  RingTurn ahead{b.plan.stages};
  for_each_chunk(b, [&](int tile, int column) {
    load_weights(ahead, tile, column);
    ahead.next();
    return ahead.parity == 0;
  });
  wait_for_predecessor();
  RingTurn turn{b.plan.stages};
  bool is_first_round = true;
  for_each_chunk(b, [&](int tile, int column) {
    if (!is_first_round) {
      b.barriers.empty[turn.stage].wait(turn.parity ^ 1);
      load_weights(turn, tile, column);
    }
    load_row_box<false>(stage_of(turn) + kWeightBytes, x_map, column, b.row_of(tile),
                        b.barriers.full[turn.stage]);
    turn.next();
    if (turn.stage == 0) is_first_round = false;
    return true;
  });
}

// The sums of one part, which has a step at least; the first step overwrites what was there.
template <int kRows, int kCluster>
__device__ void multiply_part(float (&sums)[kRows / 2], const ManyBlock<kRows, kCluster>& b,
                              int group, int count, RingTurn& turn) {
  constexpr int kStage = ManyBlock<kRows, kCluster>::kStageBytes / 16;
  const uint64_t w = describe_tile(shared_address(b.shared) + group * (kWeightBytes / 2));
  const uint64_t x = describe_tile(shared_address(b.shared) + kWeightBytes);
  const int rest = count % kStageSteps;
  int before = 0;  // the stage that products under way read
  int adds = 0;
#  pragma unroll 1
  for (int chunk = count / kStageSteps; chunk > 0; --chunk) {
    b.barriers.full[turn.stage].wait(turn.parity);
    const uint64_t a = w + turn.stage * kStage, c = x + turn.stage * kStage;
    begin_products();
    multiply_step(sums, a, c, adds);
#  pragma unroll
    for (int i = 1; i < kStageSteps; ++i) multiply_step(sums, a + i * 2, c + i * 2, 1);
    commit_products();
    if (adds != 0) {
      wait_products<1>();
      b.barriers.empty[before].arrive_warp();
    }
    adds = 1;
    before = turn.stage;
    turn.next();
  }
  if (rest > 0) {
    b.barriers.full[turn.stage].wait(turn.parity);
    const uint64_t a = w + turn.stage * kStage, c = x + turn.stage * kStage;
    begin_products();
    multiply_step(sums, a, c, adds);
    if (rest > 1) multiply_step(sums, a + 2, c + 2, 1);
    if (rest > 2) multiply_step(sums, a + 4, c + 4, 1);
    commit_products();
  }
  wait_products<0>();
  settle(sums);
  if (adds != 0) b.barriers.empty[before].arrive_warp();
  if (rest > 0) {
    b.barriers.empty[turn.stage].arrive_warp();
    turn.next();
  }
}

// Sums of rows {2 i, 2 i + 1} and features {g, g + 8} become those of one row and four neighbours,
// by lanes that exchange with those of the next features.
__device__ inline void gather_neighbours(float (&four)[4], const float* sums, bool is_odd,
                                         bool is_upper) {
  float pairs[2][2];
#  pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float first = sums[half * 2], second = sums[half * 2 + 1];
    const float other = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 4);
    pairs[half][0] = is_odd ? other : first;
    pairs[half][1] = is_odd ? second : other;
  }
#  pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, is_upper ? pairs[0][i] : pairs[1][i], 8);
    four[i] = is_upper ? other : pairs[0][i];
    four[i + 2] = is_upper ? pairs[1][i] : other;
  }
}

// Sums to the blocks that finish their rows: [set][row][feature].
template <int kRows, int kCluster>
__device__ void send_set(const float (&sums)[kRows / 2], const ManyBlock<kRows, kCluster>& b,
                         int group, int set) {
  constexpr int kShare = kRows / kCluster;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, eighth = thread % 32 / 4;
  const bool is_odd = eighth % 2 != 0, is_upper = eighth / 2 % 2 != 0;
  const int feature = group * 64 + thread / 32 * 16 + eighth / 4 * 4 + (is_upper ? 8 : 0);
  float* received = b.received() + set * (kShare * kPartsStagedStride);
#  pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    float four[4];
    gather_neighbours(four, sums + j * 4, is_odd, is_upper);
    const int row = j * 8 + thread % 4 * 2 + (is_odd ? 1 : 0);
    float* target = received + row % kShare * kPartsStagedStride + feature;
    if constexpr (kCluster == 1) {
      store_vector(target, four);
    } else {
      asm volatile(
          "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
          "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}" ::"r"(shared_address(target)),
          "r"(row / kShare), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3])
          : "memory");
    }
  }
}

__device__ inline void finish_four(const PartsProduct& p, int row, int feature, float (&y)[4]) {
  const int64_t i = static_cast<int64_t>(row) * p.out_features + feature;
  const bool is_float = p.epilogue == Epilogue::kAdd || p.out_dtype == DType::kFloat32;
  auto* wide = static_cast<float*>(p.out) + i;
  auto* narrow = static_cast<__nv_bfloat16*>(p.out) + i;
  if (p.out_features % 4 == 0) {
    float bias[4] = {}, old[4] = {};
    if (p.bias != nullptr) load_vector(bias, p.bias + feature);
    if (p.epilogue == Epilogue::kAdd) load_vector(old, wide);
#  pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (p.bias != nullptr) y[e] += bias[e];
      if (p.epilogue == Epilogue::kAdd) y[e] = old[e] + round_to_bfloat16(y[e]);
    }
    if (is_float) {
      store_vector(wide, y);
    } else {
      store_vector(narrow, y);
    }
    return;
  }
  for (int e = 0; e < 4 && feature + e < p.out_features; ++e) {
    float value = y[e];
    if (p.bias != nullptr) value += p.bias[feature + e];
    if (p.epilogue == Epilogue::kAdd) value = wide[e] + round_to_bfloat16(value);
    if (is_float) {
      wide[e] = value;
    } else {
      store(narrow + e, value);
    }
  }
}

// A warpgroup's half of the features of the block's rows.
template <int kRows, int kCluster>
__device__ void finish_rows(const ManyBlock<kRows, kCluster>& b, int group, int tile) {
  constexpr int kShare = kRows / kCluster, kLanes = 16, kTurnRows = kGroupThreads / kLanes;
  constexpr int kSetFloats = kShare * kPartsStagedStride;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int column = group * 64 + thread % kLanes * 4;
  const int feature = b.feature_of(tile) + column;
  if (feature >= b.p.out_features) return;
  const int sets = (kCluster - 1) * (kNumParts / kCluster) + 1;
#  pragma unroll 2
  for (int row = thread / kLanes; row < kShare; row += kTurnRows) {
    const int y_row = b.row_of(tile) + b.rank * kShare + row;
    if (y_row >= b.p.rows) return;
    const float* from = b.received() + row * kPartsStagedStride + column;
    float y[4];
    load_vector(y, from);
    if constexpr (kCluster > 1) {
#  pragma unroll 1
      for (int set = 1; set < sets; ++set) {
        float more[4];
        load_vector(more, from + set * kSetFloats);
#  pragma unroll
        for (int e = 0; e < 4; ++e) y[e] += more[e];
      }
    }
    finish_four(b.p, y_row, feature, y);
  }
}

template <int kRows, int kCluster>
__device__ void consume_parts(const ManyBlock<kRows, kCluster>& b) {
  // Of the first lane, so that the compiler sees that all agree.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  RingTurn turn{b.plan.stages};
  if constexpr (kCluster > 1) wait_cluster();  // all have begun
#  pragma unroll 1
  for (int tile = b.first_tile; tile < b.tiles; tile += b.tile_step) {
    float total[kRows / 2] = {};
#  pragma unroll 1
    for (int part = b.first_part; part < b.last_part; ++part) {
      const PartSteps steps = steps_of_part(b.p.in_features, part);
      float sums[kRows / 2];
      multiply_part<kRows, kCluster>(sums, b, group, steps.count, turn);
      if (kCluster > 1 && b.rank > 0) {
        // The first block's sums are the first set.
        send_set<kRows, kCluster>(sums, b, group, part - kNumParts / kCluster + 1);
      } else {
#  pragma unroll
        for (int i = 0; i < kRows / 2; ++i) total[i] += sums[i];
      }
    }
    if (kCluster == 1 || b.rank == 0) send_set<kRows, kCluster>(total, b, group, 0);
    if constexpr (kCluster > 1) {
      arrive_cluster();
      wait_cluster();
    } else {
      sync_threads<kGroupThreads>(group + 1);
    }
    finish_rows<kRows, kCluster>(b, group, tile);
    if constexpr (kCluster == 1) sync_threads<kGroupThreads>(group + 1);  // read until then
  }
}

#endif

template <int kRows, int kCluster>
__global__ void __launch_bounds__(kManyThreads, 1)
    many_parts_kernel(const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ PartsProduct p,
                      const __grid_constant__ ManyPartsPlan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char dynamic[];
  __shared__ RingBarriers barriers;
  release_successor();
  char* shared = dynamic + (-shared_address(dynamic) & 1023);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      barriers.full[i].init(1);
      barriers.empty[i].init_warps(kConsumerGroups * kGroupThreads / 32);
    }
    publish_barriers();
  }
  if (threadIdx.x == kConsumerGroups * kGroupThreads) {
    prefetch_map(w_map);
    prefetch_map(x_map);
  }
  __syncthreads();
  if constexpr (kCluster > 1) arrive_cluster();
  const ManyBlock<kRows, kCluster> block(p, plan, shared, barriers);
  if (threadIdx.x < kConsumerGroups * kGroupThreads) {
    wait_for_predecessor();
    consume_parts(block);
    return;
  }
  if (threadIdx.x % 32 == 0) produce(block, w_map, x_map);
  if constexpr (kCluster > 1) {
    __syncwarp();
    wait_cluster();
    arrive_cluster();
    wait_cluster();
  }
#endif
}

template <int kRows, int kCluster>
void launch_many(cudaStream_t stream, const PartsProduct& p, const ManyPartsPlan& plan) {
  const CUtensorMap w_map = make_row_map(p.weight, p.out_features, p.in_features, kPartsTile);
  const CUtensorMap x_map = make_row_map(p.x, p.rows, p.in_features, kRows);
  launch_clusters(stream, many_parts_kernel<kRows, kCluster>, plan.blocks, kManyThreads, kCluster,
                  static_cast<size_t>(plan.shared_bytes), w_map, x_map, p, plan);
}

}  // namespace

void launch_many_parts(cudaStream_t stream, const PartsProduct& p, const ManyPartsPlan& plan) {
  with_constant<16, 32, 64, 128>(plan.rows, [&]<int kRows>() {
    with_constant<1, 2, 4, 8>(
        plan.cluster, [&]<int kCluster>() { launch_many<kRows, kCluster>(stream, p, plan); });
  });
}

}  // namespace nanovllm::cuda
