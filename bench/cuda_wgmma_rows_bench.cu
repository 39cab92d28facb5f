// linear_wgmma.cu at 128 rows, with rows fetched less often: a block computes two of its tiles, one
// a warpgroup, from the same rows ("128 features"), and two blocks of a cluster that share K each
// fetch half of the rows for both (multicast). Beside today's kernel, on the four products of
// Qwen3-0.6B's layers, each alone and all in a row, in turns. Fails where a result is wrong.
#include <algorithm>
#include <array>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/linear/linear_wgmma_epilogue.cuh"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

constexpr int kRows = kMaxWgmmaRows, kGroup = 128, kConsumers = 2 * kGroup,
              kThreads = kConsumers + 96;
constexpr int kTileBytes = kTileFeatures * kChunk * 2, kXBytes = kRows * kChunk * 2;
constexpr int kStagedBytes = kRows * kStagedStride * 4;  // of a tile
constexpr int kMaxStages = 12, kMaxShared = 225 << 10;

struct Division {
  WgmmaPlan plan;  // what the epilogues want
  int chunks;      // of K, of a block
  int stages;      // of x
  int scale_offset;
  int x_rows;  // that are fetched; fewer than all only to see what the others cost
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The box of load_box() to the blocks of `mask`, whose barriers count its bytes.
__device__ void load_box_to(void* target, const CUtensorMap& map, int row, int chunk,
                            const Barrier& barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster "
      "[%0], [%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(shared_address(target)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(0), "r"(row), "r"(chunk), "r"(barrier.address()),
      "h"(mask)
      : "memory");
}
__device__ void arrive_remote(const Barrier& barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 bar;\nmapa.shared::cluster.u32 bar, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar];\n}" ::"r"(barrier.address()),
      "r"(rank)
      : "memory");
}

struct Barriers {
  Barrier w[kMaxCopies], x[kMaxStages], free[kMaxStages], sums;
};

// How the blocks of a cluster divide the work: kPeers have other features, and of each kKBlocks
// share K. A block has kTiles tiles, of each warpgroup its own or one whose K they share.
template <int kTiles, int kKBlocks, int kPeers>
struct Block {
  static constexpr bool kIsCluster = kKBlocks * kPeers > 1;
  static constexpr int kShare = kRows / kKBlocks;  // rows that the block finishes
  static constexpr int kPart = kRows / kPeers;     // and that it fetches
  static constexpr int kStep = 3 - kTiles;         // from one chunk of a warpgroup to its next

  __device__ Block(const Division& division, char* memory, Barriers& all)
      : d(division), shared(memory), barriers(all) {}

  // By one thread.
  __device__ void init() {
    for (int i = 0; i < d.chunks / 2; ++i) barriers.w[i].init(1);
    for (int i = 0; i < d.stages; ++i) {
      barriers.x[i].init(1);
      barriers.free[i].init(kConsumers / 32 / kStep * kPeers);
    }
    barriers.sums.init(1);
    barriers.sums.expect(kTiles * (kRows - kShare) * kTileFeatures * 4);
    publish_barriers();
  }

  // Likewise; of pairs, `features` 32 a tile.
  __device__ void fetch_weights(const CUtensorMap& map, int features) {
    for (int copy = 0; copy < d.chunks / 2; ++copy) {
      barriers.w[copy].expect(kTiles * 2 * kTileBytes);
      for (int i = 0; i < kTiles; ++i) {
        load_box<true>(shared + (i * d.chunks + copy * 2) * kTileBytes, map, (tile + i) * features,
                       k_rank * d.chunks + copy * 2, barriers.w[copy]);
      }
    }
  }
  __device__ void fetch_x(const CUtensorMap& map) {
    for (int chunk = 0, stage = 0, parity = 0; chunk < d.chunks; ++chunk) {
      if (chunk >= d.stages) barriers.free[stage].wait(parity ^ 1);
      barriers.x[stage].expect(d.x_rows * kChunk * 2);
      char* target = x_shared + stage * kXBytes + peer * kPart * kChunk * 2;
      const int at = k_rank * d.chunks + chunk;
      if constexpr (kPeers > 1) {
        const auto both = static_cast<uint16_t>((1 | 1 << kKBlocks) << k_rank);
        load_box_to(target, map, peer * kPart, at, barriers.x[stage], both);
      } else {
        load_box<false>(target, map, 0, at, barriers.x[stage]);
      }
      if (++stage == d.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // By the warpgroups.
  __device__ void multiply(float (&sums)[kRows / 2], int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = kTiles > 1 ? 0 : group;
    const uint64_t w =
        describe_tile(shared_address(shared) + (kTiles > 1 ? group * d.chunks * kTileBytes : 0));
    const uint64_t x = describe_tile(shared_address(x_shared));
    int stage = first, parity = 0;
#  pragma unroll 1
    for (int chunk = first; chunk < d.chunks; chunk += kStep) {
      barriers.w[chunk / 2].wait(0);
      barriers.x[stage].wait(parity);
      begin_products();
#  pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        multiply_tile(sums, w + chunk * (kTileBytes / 16) + step * 2,
                      x + stage * (kXBytes / 16) + step * 2);
      }
      commit_products();
      // Given back at once where it is wanted again: the other group keeps the tensor cores busy.
      if (chunk + d.stages < d.chunks) {
        wait_products<0>();
        if (lane < kPeers) arrive_remote(barriers.free[stage], k_rank + lane * kKBlocks);
      }
      stage += kStep;
      if (stage >= d.stages) {
        stage -= d.stages;
        parity ^= 1;
      }
    }
    wait_products<0>();
  }

  // The sums as an epilogue wants them, where the operands were: once all blocks of the cluster are
  // so far, each has those of the rows that it finishes.
  __device__ const float* gather(const float (&sums)[kRows / 2], int group) {
    auto* staged = reinterpret_cast<float*>(shared);
    float* received = staged + 2 * kRows * kStagedStride;
    sync_threads<kConsumers>(1);
    if constexpr (kIsCluster) arrive_cluster();
    const int thread = static_cast<int>(threadIdx.x) % kGroup;
    float* target = staged + group * kRows * kStagedStride + thread % 4 * 2 * kStagedStride +
                    thread / 32 * 16 + thread % 32 / 4;
#  pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      target[(i / 4 * 8 + i % 2) * kStagedStride + i % 4 / 2 * 8] = sums[i];
    }
    sync_threads<kThreads>(2);
    if constexpr (kIsCluster) wait_cluster();
    if constexpr (kKBlocks == 1) return staged;
    const int column = static_cast<int>(threadIdx.x) % 16 * 4;
#  pragma unroll
    for (int i = 0; i < kTiles * kRows / 16; ++i) {
      const int line = static_cast<int>(threadIdx.x) / 16 + i * 16, row = line % kRows;
      float y[4];
      read_sums<kStep, kRows>(y, staged, line, column);
      float* there = received +
                     (line / kRows * kRows + k_rank * kShare + row % kShare) * kStagedStride +
                     column;
      if (row / kShare == k_rank) {
        store_vector(there, y);
      } else {
        store_remote(there, barriers.sums, peer * kKBlocks + row / kShare,
                     make_float4(y[0], y[1], y[2], y[3]));
      }
    }
    sync_threads<kConsumers>(1);
    barriers.sums.wait(0);
    return received;
  }
  // By the other warps.
  __device__ void leave() {
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");  // the scales are there
    if constexpr (kIsCluster) {
      arrive_cluster();
      wait_cluster();
    }
  }

  const Division& d;
  char* const shared;
  Barriers& barriers;
  char* const x_shared = shared + kTiles * d.chunks * kTileBytes;
  const int k_rank = static_cast<int>(blockIdx.x) % kKBlocks,
            peer = static_cast<int>(blockIdx.x) / kKBlocks;
  const int tile = (static_cast<int>(blockIdx.y) * kPeers + peer) * kTiles;
};

// The norm's factor of every row, by one warp.
__device__ void fetch_scale(const WgmmaProduct& p, float* scale) {
  for (int row = threadIdx.x % 32; row < p.rows && p.norm.weighted != nullptr; row += 32) {
    float sum = 0;
#  pragma unroll 16
    for (int part = 0; part < p.norm.parts; ++part) sum += p.norm.squares[part * p.rows + row];
    scale[row] = rsqrtf(sum / static_cast<float>(p.in_features) + p.norm.norm.eps);
  }
}
#endif

template <int kTiles, int kKBlocks, int kPeers, bool kPairs>
__global__ void __launch_bounds__(kThreads, 1)
    rows_kernel(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const __grid_constant__ WgmmaProduct p,
                const __grid_constant__ Division d) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char dynamic[];
  __shared__ Barriers barriers;
  release_successor();
  char* shared = dynamic + (-shared_address(dynamic) & 1023);
  auto* scale = reinterpret_cast<float*>(shared + d.scale_offset);
  Block<kTiles, kKBlocks, kPeers> block(d, shared, barriers);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool first_lane = threadIdx.x % 32 == 0;
  if (threadIdx.x == 0) block.init();
  __syncthreads();
  if constexpr (kPeers > 1) {
    arrive_cluster();
    wait_cluster();
  }
  if (warp >= kConsumers / 32) {
    if (warp == kConsumers / 32) {
      if (first_lane) block.fetch_weights(w_map, kPairs ? kTileFeatures / 2 : kTileFeatures);
    } else {
      wait_for_predecessor();
      if (warp == kConsumers / 32 + 1 && first_lane) block.fetch_x(x_map);
      if (warp == kConsumers / 32 + 2) fetch_scale(p, scale);
    }
    return block.leave();
  }
  constexpr int kParts = kKBlocks > 1 ? kKBlocks : block.kStep;
  using Epilogue = std::conditional_t<kPairs, PairEpilogue<kConsumers, kParts, block.kShare>,
                                      RowEpilogue<kConsumers, kParts, block.kShare>>;
  const int first_row = block.k_rank * block.kShare;
  Epilogue first(p, d.plan, block.tile, first_row),
      second(p, d.plan, block.tile + kTiles - 1, first_row);
  wait_for_predecessor();
  first.fetch();
  if constexpr (kTiles > 1) second.fetch();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0);
  float sums[kRows / 2] = {};
  block.multiply(sums, group);
  const float* gathered = block.gather(sums, group);
  first.finish(gathered, scale);
  if constexpr (kTiles > 1) second.finish(gathered + kRows * kStagedStride, scale);
#endif
}

template <int kTiles, int kKBlocks, int kPeers, bool kPairs, int kXRows>
void launch_kernel(cudaStream_t stream, const WgmmaProduct& p) {
  constexpr int kParts = kPairs ? 2 : 1, kCluster = kKBlocks * kPeers;
  Division d = {};
  d.plan.features = kTileFeatures;
  d.chunks = p.in_features / kChunk / kKBlocks;
  d.x_rows = kXRows;
  const int weights = kTiles * d.chunks * kTileBytes;
  d.stages = std::min({d.chunks, kMaxStages, (kMaxShared - 2048 - weights) / kXBytes});
  // A stage that is used again is one group's.
  if (kTiles == 1 && d.stages < d.chunks) d.stages -= d.stages % 2;
  NANOVLLM_CHECK(d.stages >= 2);
  d.scale_offset =
      std::max(weights + d.stages * kXBytes, (kKBlocks > 1 ? 2 + kTiles : 2) * kStagedBytes);
  const void* x = p.norm.weighted != nullptr ? p.norm.weighted : p.x;
  const CUtensorMap w_map =
      make_tensor_map(p.weight, p.out_features, p.in_features, kParts, {kTileFeatures / kParts, 2});
  const CUtensorMap x_map = make_tensor_map(x, p.rows, p.in_features, 1, {kXRows / kPeers, 1});
  launch_clusters(stream, rows_kernel<kTiles, kKBlocks, kPeers, kPairs>,
                  dim3(kCluster, p.out_features / (kTiles * kTileFeatures * kPeers)), kThreads,
                  kCluster, d.scale_offset + kRows * 4 + 1024, w_map, x_map, p, d);
}

// K is shared by the blocks of a cluster where there are few features, as in linear_wgmma.cu.
template <int kTiles, int kPeers, int kXRows = kRows>
void launch_rows(cudaStream_t stream, const WgmmaProduct& p) {
  if (p.epilogue == Epilogue::kActAndMul) {
    launch_kernel<kTiles, kTiles, kPeers, true, kXRows>(stream, p);
  } else if (p.epilogue == Epilogue::kAdd) {
    launch_kernel<kTiles, 4 * kTiles, kPeers, false, kXRows>(stream, p);
  } else {
    launch_kernel<kTiles, kTiles, kPeers, false, kXRows>(stream, p);
  }
}
void launch_today(cudaStream_t stream, const WgmmaProduct& p) {
  static const int multiprocessors = the_device().multiProcessorCount;
  launch_wgmma(stream, p, multiprocessors);
}

struct Way {
  const char* name;
  void (*launch)(cudaStream_t, const WgmmaProduct&);
  bool is_right = true;
};
constexpr std::array<Way, 5> kWays = {
    {{"today's", launch_today},
     {"64 features a block", launch_rows<1, 1>},
     {"128 features a block", launch_rows<2, 1>},
     {"64 features, multicast to 2", launch_rows<1, 2>},
     // How fast it would be if rows cost next to nothing.
     {"64 features, an eighth of the rows", launch_rows<1, 1, kRows / 8>, false}}};
constexpr int kAll = -1;  // products

class Layers {
 public:
  // The largest of the relative errors of a layer's products, each from the ones before.
  double error(const Way& way) const {
    double worst = 0;
    for (int i = 0; i < 4; ++i) {
      const WgmmaProduct p = product(i, 0);
      const bool is_sum = p.epilogue == Epilogue::kAdd;
      const int count = kRows * kProducts[i].width();
      const auto read = [&](const void* y) {
        return is_sum ? to_host<float>(y, count) : to_host<Bf16>(y, count);
      };
      if (is_sum) {
        NANOVLLM_CUDA_CHECK(cudaMemcpy(want_, p.out, count * 4, cudaMemcpyDeviceToDevice));
      }
      plain_product(kProducts[i], kRows, layers_[0][i], p.x, p.in_features, norm_, want_);
      if (!is_sum) NANOVLLM_CUDA_CHECK(cudaMemset(p.out, 0xff, count * 2));
      NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
      way.launch(nullptr, p);
      worst = std::max(worst, relative_error(read(p.out), read(want_)));
    }
    return worst;
  }

  cudaGraphExec_t capture_layers(const Way& way, int only) const {
    return capture([&](cudaStream_t stream) {
      for (int layer = 0; layer < times(only); ++layer) {
        for (int i = 0; i < 4; ++i) {
          if (only == kAll || only == i) way.launch(stream, product(i, layer % kLayers));
        }
      }
    });
  }
  // Microseconds a layer.
  double time(cudaGraphExec_t graph, int only) const {
    NANOVLLM_CUDA_CHECK(cudaMemset(rows_.residual, 0, kRows * kHidden * 4));
    return CudaTimer(nullptr).time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(graph, nullptr)); }) /
           times(only);
  }

 private:
  static int times(int only) { return only == kAll ? kLayers : 4 * kLayers; }

  WgmmaProduct product(int i, int layer) const {
    WgmmaProduct p;
    rows_.describe(p, i, kRows, layers_[layer]);
    if (i == 0) p.x = attention_;  // so that wrong rows do not come back
    (p.epilogue == Epilogue::kAdd ? p.next_norm : p.norm) =
        SplitNorm{{norm_, kEps}, hidden_, squares_, square_parts(kHidden)};
    return p;
  }

  const std::array<LayerWeights, kLayers> layers_ = random_layers();
  const Activations rows_{kRows};
  const Bf16* attention_ = random<Bf16>(kRows * kHeads, 0, 1);
  const float* norm_ = random<float>(kHidden, 1, 0.2f);
  Bf16* hidden_ = allocate<Bf16>(kRows * kHidden);
  float* squares_ = allocate<float>(kRows * square_parts(kHidden));
  float* want_ = allocate<float>(kRows * kQkv);
};

int run() {
  std::printf("%s, %d rows, us a layer (medians of 9), and ratios to today's in the same round\n",
              the_device().name, kRows);
  const Layers layers;
  int failures = 0;
  for (const Way& way : kWays) {
    const double error = way.is_right ? layers.error(way) : 0;
    if (error < 4e-3) continue;
    ++failures;
    std::printf("WRONG %s: %.2e\n", way.name, error);
  }
  for (const int only : {kAll, 0, 1, 2, 3}) {
    std::vector<cudaGraphExec_t> graphs;
    for (const Way& way : kWays) graphs.push_back(layers.capture_layers(way, only));
    const std::vector<Medians> medians =
        in_turns(9, kWays.size(), [&](int way) { return layers.time(graphs[way], only); });
    for (size_t i = 0; i < kWays.size(); ++i) {
      std::printf("%-8s %-35s %6.2f us %6.3f\n", only == kAll ? "all" : kProducts[only].name,
                  kWays[i].name, medians[i].time, medians[i].ratio);
    }
  }
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
