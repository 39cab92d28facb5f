// linear_wgmma.cu at 128 rows, with rows fetched less often: a block computes two of its tiles, one
// a warpgroup, from the same rows ("128 features"), and blocks of a cluster that share K each fetch
// a part of the rows for all of them (multicast). Beside today's kernel on the four products of
// Qwen3-0.6B's layers, each alone and all in a row, in turns. Fails where a result is wrong.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <type_traits>
#include <vector>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear/linear_wgmma_epilogue.cuh"
#include "backend/cuda/linear/wgmma.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/tma.cuh"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

using Bf16 = __nv_bfloat16;
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
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
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
    constexpr int kMask = 1 | (kPeers > 1 ? 1 << kKBlocks : 0) |
                          (kPeers > 2 ? 1 << 2 * kKBlocks | 1 << 3 * kKBlocks : 0);
    for (int chunk = 0, stage = 0, parity = 0; chunk < d.chunks; ++chunk) {
      if (chunk >= d.stages) barriers.free[stage].wait(parity ^ 1);
      barriers.x[stage].expect(d.x_rows * kChunk * 2);
      char* target = x_shared + stage * kXBytes + peer * kPart * kChunk * 2;
      const int at = k_rank * d.chunks + chunk;
      if constexpr (kPeers > 1) {
        load_box_to(target, map, peer * kPart, at, barriers.x[stage],
                    static_cast<uint16_t>(kMask << k_rank));
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
    for (int i = 0; i < kRows / 2; ++i)
      target[(i / 4 * 8 + i % 2) * kStagedStride + i % 4 / 2 * 8] = sums[i];
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

using Launch = std::function<void(cudaStream_t, const WgmmaProduct&)>;

template <int kTiles, int kKBlocks, int kPeers, bool kPairs, int kXRows = kRows>
void launch_rows(cudaStream_t stream, const WgmmaProduct& p) {
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
  const auto kernel = rows_kernel<kTiles, kKBlocks, kPeers, kPairs>;
  if (kCluster > 8) {
    NANOVLLM_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  const void* x = p.norm.weighted != nullptr ? p.norm.weighted : p.x;
  const CUtensorMap w_map =
      make_tensor_map(p.weight, p.out_features, p.in_features, kParts, {kTileFeatures / kParts, 2});
  const CUtensorMap x_map = make_tensor_map(x, p.rows, p.in_features, 1, {kXRows / kPeers, 1});
  launch_clusters(stream, kernel,
                  dim3(kCluster, p.out_features / (kTiles * kTileFeatures * kPeers)), kThreads,
                  kCluster, d.scale_offset + kRows * 4 + 1024, w_map, x_map, p, d);
}

// What a product gives, by one thread an element.
__global__ void plain_kernel(const __grid_constant__ WgmmaProduct p, float* out, int width) {
  const int feature = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
  const auto* x = static_cast<const Bf16*>(p.norm.weighted != nullptr ? p.norm.weighted : p.x) +
                  row * p.in_features;
  float scale = 1;
  if (p.norm.weighted != nullptr) {
    float sum = 0;
    for (int part = 0; part < p.norm.parts; ++part) sum += p.norm.squares[part * p.rows + row];
    scale = rsqrtf(sum / static_cast<float>(p.in_features) + p.norm.norm.eps);
  }
  const auto dot = [&](int of) {
    const auto* w = static_cast<const Bf16*>(p.weight) + int64_t{of} * p.in_features;
    float sum = 0;
    for (int k = 0; k < p.in_features; ++k) sum += load(w + k) * load(x + k);
    return round_to_bfloat16(sum * scale);
  };
  float y = dot(feature);
  if (p.epilogue == Epilogue::kAdd) y += static_cast<const float*>(p.out)[row * width + feature];
  if (p.epilogue == Epilogue::kActAndMul)
    y = gate_and_mul<Activation::kSilu>(y, dot(width + feature));
  out[row * width + feature] = y;
}
struct Choice {
  const char* name;
  Launch launch;
};

class Layers {
 public:
  static constexpr int kLayers = 28, kHidden = 1024, kHeads = 2048, kWidth = 3072, kQkv = 4096;
  enum Product { kOut, kGateUp, kDown, kNext, kProducts };
  static constexpr const char* kNames[] = {"o", "gate_up", "down", "qkv"};

  Layers() {
    const std::vector<float> ones(kHidden, 1);
    NANOVLLM_CUDA_CHECK(cudaMemcpy(norm_, ones.data(), kHidden * 4, cudaMemcpyHostToDevice));
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const auto [n, k] : {std::pair(kHidden, kHeads),
                                {2 * kWidth, kHidden},
                                {kHidden, kWidth},
                                {kQkv, kHidden}}) {
        weights_.push_back(random<Bf16>(int64_t{n} * k, 0, 0.03f));
      }
    }
    NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  const cudaDeviceProp& device() const { return device_; }

  WgmmaProduct product(int which, int layer) const {
    constexpr Epilogue kEpilogues[] = {Epilogue::kAdd, Epilogue::kActAndMul, Epilogue::kAdd,
                                       Epilogue::kStore};
    constexpr int kOutputs[] = {kHidden, 2 * kWidth, kHidden, kQkv},
                  kInputs[] = {kHeads, kHidden, kWidth, kHidden};
    const SplitNorm split = {{norm_, 1e-6f}, hidden_, squares_, square_parts(kHidden)};
    WgmmaProduct p;
    p.rows = kRows;
    p.out_features = kOutputs[which];
    p.in_features = kInputs[which];
    p.weight = weights_[layer * kProducts + which];
    p.epilogue = kEpilogues[which];
    p.x = which == kOut ? attention_ : mlp_;
    p.out = std::array<void*, kProducts>{residual_, mlp_, residual_, qkv_}[which];
    (p.epilogue == Epilogue::kAdd ? p.next_norm : p.norm) = split;
    return p;
  }

  // The largest of the relative errors of a layer's products, each from the ones before.
  double error(const std::vector<Choice>& choices) {
    double worst = 0;
    auto* plain = allocate<float>(kRows * kQkv);
    NANOVLLM_CUDA_CHECK(cudaMemset(residual_, 0, kRows * kHidden * 4));
    NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
    for (int which = 0; which < kProducts; ++which) {
      const WgmmaProduct p = product(which, 0);
      const bool is_sum = p.epilogue == Epilogue::kAdd;
      const int width = p.epilogue == Epilogue::kActAndMul ? kWidth : p.out_features;
      plain_kernel<<<dim3(width / 128, kRows), 128, 0, stream_>>>(p, plain, width);
      if (!is_sum) NANOVLLM_CUDA_CHECK(cudaMemsetAsync(p.out, 0xff, kRows * width * 2, stream_));
      choices[which].launch(stream_, p);
      NANOVLLM_CUDA_CHECK(cudaStreamSynchronize(stream_));
      const std::vector<float> want = to_host<float>(plain, kRows * width);
      const std::vector<float> got =
          is_sum ? to_host<float>(p.out, kRows * width) : to_host<Bf16>(p.out, kRows * width);
      worst = std::max(worst, relative_error(got, want));
      if (!is_sum) continue;
      worst = std::max(worst, relative_error(to_host<Bf16>(hidden_, kRows * kHidden), got));
      std::vector<float> squares(kRows),
          parts = to_host<float>(squares_, kRows * kHidden / kTileFeatures), sums(kRows);
      for (size_t i = 0; i < got.size(); ++i) squares[i / kHidden] += got[i] * got[i];
      for (size_t i = 0; i < parts.size(); ++i) sums[i % kRows] += parts[i];
      worst = std::max(worst, relative_error(sums, squares));
    }
    cudaFree(plain);
    return worst;
  }

  // Microseconds a layer of one product, or of all.
  cudaGraphExec_t capture(const std::vector<Choice>& choices, int only) {
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int layer = 0; layer < kLayers * (only < 0 ? 1 : 4); ++layer) {
      for (int which = 0; which < kProducts; ++which) {
        if (only < 0 || only == which)
          choices[which].launch(stream_, product(which, layer % kLayers));
      }
    }
    NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    cudaGraphDestroy(graph);
    return instance;
  }
  double time(cudaGraphExec_t graph, int only) {
    NANOVLLM_CUDA_CHECK(cudaMemsetAsync(residual_, 0, kRows * kHidden * 4, stream_));
    return CudaTimer(stream_).time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(graph, stream_)); }) /
           (kLayers * (only < 0 ? 1 : 4));
  }

 private:
  const cudaDeviceProp device_ = the_device();
  cudaStream_t stream_;
  std::vector<Bf16*> weights_;
  float* norm_ = allocate<float>(kHidden);
  float* residual_ = allocate<float>(kRows * kHidden);
  float* squares_ = allocate<float>(kRows * kHidden / kTileFeatures);
  Bf16* hidden_ = allocate<Bf16>(kRows * kHidden);
  Bf16* mlp_ = allocate<Bf16>(kRows * kWidth);
  Bf16* qkv_ = allocate<Bf16>(kRows * kQkv);
  Bf16* attention_ = random<Bf16>(kRows * kHeads, 0, 1);
};

int run() {
  Layers layers;
  const Choice today = {
      "today", [&](cudaStream_t s, const WgmmaProduct& p) { launch_wgmma(s, p, layers.device()); }};
  // Tiles of a block, blocks that share K, and blocks that share rows.
  const Choice row141 = {"1 4 1", launch_rows<1, 4, 1, false>},
               row142 = {"1 4 2", launch_rows<1, 4, 2, false>},
               row144 = {"1 4 4", launch_rows<1, 4, 4, false>},
               row111 = {"1 1 1", launch_rows<1, 1, 1, false>},
               row112 = {"1 1 2", launch_rows<1, 1, 2, false>},
               row114 = {"1 1 4", launch_rows<1, 1, 4, false>},
               row281 = {"2 8 1", launch_rows<2, 8, 1, false>},
               row282 = {"2 8 2", launch_rows<2, 8, 2, false>},
               row221 = {"2 2 1", launch_rows<2, 2, 1, false>},
               row222 = {"2 2 2", launch_rows<2, 2, 2, false>},
               row224 = {"2 2 4", launch_rows<2, 2, 4, false>},
               row121 = {"1 2 1", launch_rows<1, 2, 1, false>};
  const Choice pair111 = {"1 1 1", launch_rows<1, 1, 1, true>},
               pair112 = {"1 1 2", launch_rows<1, 1, 2, true>},
               pair114 = {"1 1 4", launch_rows<1, 1, 4, true>},
               pair221 = {"2 2 1", launch_rows<2, 2, 1, true>},
               pair222 = {"2 2 2", launch_rows<2, 2, 2, true>},
               pair224 = {"2 2 4", launch_rows<2, 2, 4, true>};
  // With an eighth of the rows: wrong, and how fast it would be if rows cost next to nothing.
  const Choice few141 = {"1 4 1 rows/8", launch_rows<1, 4, 1, false, 16>},
               few111 = {"1 1 1 rows/8", launch_rows<1, 1, 1, false, 16>},
               few281 = {"2 8 1 rows/8", launch_rows<2, 8, 1, false, 16>},
               few221 = {"2 2 1 rows/8", launch_rows<2, 2, 1, false, 16>},
               few_pair111 = {"1 1 1 rows/8", launch_rows<1, 1, 1, true, 16>},
               few_pair221 = {"2 2 1 rows/8", launch_rows<2, 2, 1, true, 16>};
  using Chain = std::vector<Choice>;
  const std::vector<Chain> chains = {
      {today, today, today, today},         {row141, pair111, row141, row111},
      {row142, pair112, row142, row112},    {row144, pair114, row144, row114},
      {row281, pair221, row281, row221},    {row282, pair222, row282, row222},
      {row281, pair224, row281, row224},    {row141, pair221, row281, row121},
      {row141, today, row281, today},       {few141, few_pair111, few141, few111},
      {few281, few_pair221, few281, few221}};
  const size_t num_right = chains.size() - 2;
  std::printf(
      "%s, %d rows, us a layer (medians of 9) and the median of its ratio to today's in the same "
      "round;\n"
      "tiles of a block, blocks that share K, and blocks that share rows\n",
      layers.device().name, kRows);
  int failures = 0;
  for (const int only : {-1, 0, 1, 2, 3}) {
    std::vector<cudaGraphExec_t> graphs;
    std::vector<std::vector<double>> times(chains.size()), ratios(chains.size());
    for (const Chain& chain : chains) {
      const double error = only < 0 && graphs.size() < num_right ? layers.error(chain) : 0;
      if (!(error < 4e-3)) {
        ++failures;
        std::printf("WRONG %zu: %.2e\n", graphs.size(), error);
      }
      graphs.push_back(layers.capture(chain, only));
    }
    for (int round = 0; round < 10; ++round) {
      for (size_t i = 0; i < graphs.size(); ++i) {
        const double time = layers.time(graphs[i], only);
        if (round == 0) continue;
        times[i].push_back(time);
        ratios[i].push_back(time / times[0].back());
      }
    }
    for (size_t i = 0; i < graphs.size(); ++i) {
      std::printf("%-8s", only < 0 ? "all" : Layers::kNames[only]);
      for (int which = 0; which < Layers::kProducts; ++which) {
        if (only < 0 || only == which)
          std::printf(" %s %s;", Layers::kNames[which], chains[i][which].name);
      }
      std::printf(" %.2f us, %.3f\n", median(times[i]), median(ratios[i]));
      cudaGraphExecDestroy(graphs[i]);
    }
  }
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
