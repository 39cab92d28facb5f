// Products of tiles of experts' rows on Hopper, of any number of rows: bound by the bytes of the
// chosen experts' weights where rows are few, by the tensor cores where they are many.
//
// A block stays and takes items in turn, an item being a tile of rows and 64 features for each of
// its warpgroups, which are the tensor cores' M; rows are their N, as few as the tile needs. One
// warp has the copy engine bring weights and rows into a ring of stages, ahead through the items,
// so that the stream of weights never stops. Where rows are few, a block leaves half of the shared
// memory to the next kernel's, whose first weights are under way before this one ends; where they
// are many, the blocks of a cluster take neighbouring features of the same rows, and each brings a
// share of the rows to all. K is never split and is summed in one order: a row's bits do not depend
// on the tile it is in.
//
// Gate and up: the box of weights is 8 lines of the gate, 8 of up, and so on, so that a thread
// holds both of its features.
#include <algorithm>
#include <utility>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/experts/experts.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kChunk = 64;  // columns of K that a copy brings
constexpr int kLineBytes = kChunk * 2;

// The ways to cut: few rows and many.
template <int groups, int max_rows, int box_rows, int chunks, int stages, int cluster>
struct Shape {
  [[maybe_unused]] static constexpr int kMaxRows = max_rows;
  // Products are of multiples of so many rows.
  [[maybe_unused]] static constexpr int kRowStep = max_rows < 64 ? max_rows / 2 : max_rows / 4;
  static constexpr int kBoxRows = box_rows;  // rows of x that a copy brings
  static constexpr int kCluster = cluster;
  static constexpr int kChunks = chunks;  // of a stage
  static constexpr int kStages = stages;
  static constexpr int kFeatures = 64 * groups;
  static constexpr int kConsumers = 128 * groups, kThreads = kConsumers + 32;
  static constexpr int kWBytes = kFeatures * kLineBytes, kXBytes = max_rows * kLineBytes;
  static constexpr int kXStart = kStages * kChunks * kWBytes;
  static constexpr int kSharedBytes = kXStart + kStages * kChunks * kXBytes + 1024;
};
using FewRows = Shape<1, kSmallTileRows, 16, 2, 4, 1>;
using ManyRows = Shape<2, kLargeTileRows, 64, 1, 4, 2>;

struct Launch {
  ExpertProduct product;
  Gating gating;
  int feature_tiles;  // of a cluster
  int units;          // of K
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's way through its items and their units of K, and around the ring.
template <typename S>
class Walk {
 public:
  __device__ explicit Walk(const Launch& launch)
      : launch_(launch),
        item_(static_cast<int>(blockIdx.x) / S::kCluster),
        end_(*launch.product.num_tiles * launch.feature_tiles) {
    tile = tile_of(item_);
    load_next_tile();
  }

  __device__ bool is_done() const { return item_ >= end_; }
  __device__ void next_unit() {
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
    if (++unit == launch_.units) next_item();
  }
  __device__ void next_item() {
    unit = 0;
    item_ += step();
    tile = next_tile_;
    load_next_tile();
  }
  __device__ int feature_tile() const {
    return item_ % launch_.feature_tiles * S::kCluster + rank();
  }
  // Of the block in its cluster.
  __device__ static int rank() { return static_cast<int>(blockIdx.x) % S::kCluster; }

  RowTile tile;
  int unit = 0, stage = 0;
  uint32_t parity = 0;

 private:
  __device__ static int step() { return static_cast<int>(gridDim.x) / S::kCluster; }
  __device__ RowTile tile_of(int item) const {
    return launch_.product.tiles[min(item / launch_.feature_tiles, launch_.product.max_tiles - 1)];
  }
  // Ahead of its use.
  __device__ void load_next_tile() { next_tile_ = tile_of(item_ + step()); }

  const Launch& launch_;
  RowTile next_tile_;
  int item_;
  const int end_;
};

// A box of rank 5 of the weights, see make_expert_map(), or of rank 2 of the rows.
__device__ inline void load_weights(void* target, const CUtensorMap& map, int column, int group,
                                    int expert, const Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %3, %4, %5}], [%6];" ::"r"(shared_address(target)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(0), "r"(group), "r"(expert),
      "r"(barrier.address())
      : "memory");
}
// Into the same place of all blocks of the cluster, each of whose barriers counts the bytes.
template <int kCluster>
__device__ void load_rows(void* target, const CUtensorMap& map, int column, int row,
                          const Barrier& barrier) {
  if constexpr (kCluster == 1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(target)),
        "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier.address())
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(target)),
        "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier.address()),
        "h"(static_cast<uint16_t>((1 << kCluster) - 1))
        : "memory");
  }
}

// A warp's arrival at a barrier of every block of the cluster.
template <int kCluster>
__device__ void arrive_everywhere(Barrier& barrier) {
  if constexpr (kCluster == 1) return barrier.arrive_warp();
  __syncwarp();
  if (threadIdx.x % 32 >= Barrier::kWarpArrivals) return;
#  pragma unroll
  for (int block = 0; block < kCluster; ++block) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier.address()),
        "r"(block)
        : "memory");
  }
}

template <typename S>
struct Producer {
  const CUtensorMap &w_map, &x_map;
  int groups;  // of lines of weights that an item has, as the map counts them
  char* shared;
  StageBarriers<S::kStages>& barriers;

  // By all lanes of a warp.
  __device__ void fetch_weights(const Walk<S>& at) const {
    const int lane = threadIdx.x % 32;
    Barrier& barrier = barriers.full[at.stage];
    if (lane == 0) barrier.expect(S::kChunks * (S::kWBytes + boxes(at) * S::kBoxRows * kLineBytes));
    __syncwarp();
    if (lane < S::kChunks) {
      load_weights(shared + (at.stage * S::kChunks + lane) * S::kWBytes, w_map,
                   (at.unit * S::kChunks + lane) * kChunk, at.feature_tile() * groups,
                   at.tile.expert, barrier);
    }
  }
  __device__ void fetch_rows(const Walk<S>& at) const {
    const int chunk = static_cast<int>(threadIdx.x) % S::kChunks;
    const int box = static_cast<int>(threadIdx.x) % 32 / S::kChunks;
    if (box >= boxes(at) || box % S::kCluster != at.rank()) return;
    load_rows<S::kCluster>(shared + S::kXStart + (at.stage * S::kChunks + chunk) * S::kXBytes +
                               box * S::kBoxRows * kLineBytes,
                           x_map, (at.unit * S::kChunks + chunk) * kChunk,
                           at.tile.first_row + box * S::kBoxRows, barriers.full[at.stage]);
  }

 private:
  __device__ static int boxes(const Walk<S>& at) {
    return (at.tile.num_rows + S::kBoxRows - 1) / S::kBoxRows;
  }
};

template <typename S>
__device__ void produce(const Launch& launch, const Producer<S>& producer) {
  if (!launch.product.tiles_are_older) wait_for_predecessor();
  Walk<S> walk(launch), rows(walk);
  for (int i = 0; i < S::kStages && !walk.is_done(); ++i, walk.next_unit()) {
    producer.fetch_weights(walk);
  }
  if (launch.product.tiles_are_older) wait_for_predecessor();
  release_successor();
  for (int i = 0; i < S::kStages && !rows.is_done(); ++i, rows.next_unit()) {
    producer.fetch_rows(rows);
  }
#  pragma unroll 1
  for (; !walk.is_done(); walk.next_unit()) {
    producer.barriers.empty[walk.stage].wait(walk.parity ^ 1);
    producer.fetch_weights(walk);
    producer.fetch_rows(walk);
  }
}

// What one thread makes of an item's sums, see wgmma.cuh: of rows 8 j + its two of features
// `line` and `line` + 8 of the block's box.
template <bool kGated>
class Finish {
 public:
  __device__ Finish(const Launch& launch, const RowTile& tile, int feature_tile, int features)
      : gating_(launch.gating), p_(launch.product), tile_(tile) {
    const ExpertProduct& p = p_;
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int line = static_cast<int>(threadIdx.x) / 128 * 64 + thread / 32 * 16;
    width_ = kGated ? p.out_features / 2 : p.out_features;
    feature_ = kGated ? (feature_tile * features + line) / 2 : feature_tile * features + line;
    feature_ += lane / 4;
    row_ = lane % 4 * 2;
    if (p.bias == nullptr) return;
    const float* bias = p.bias + static_cast<int64_t>(tile.expert) * p.out_features + feature_;
    const int second = kGated ? width_ : 8;
    if (feature_ < width_) bias_[0] = bias[0];
    if (feature_ + (kGated ? 0 : 8) < width_) bias_[1] = bias[second];
  }

  // Of the tile's rows from `row` on.
  template <int n>
  __device__ void store(const float (&sums)[n], int row) const {
#  pragma unroll
    for (int j = 0; j < n / 4; ++j, row += 8) {
      if (row >= tile_.num_rows) break;
      float first[2], second[2];
#  pragma unroll
      for (int e = 0; e < 2; ++e) {
        first[e] = sums[j * 4 + e] + bias_[0];
        second[e] = sums[j * 4 + 2 + e] + bias_[1];
        if constexpr (kGated) first[e] = gating_(first[e], second[e]);
      }
      store_pair(first, row, feature_);
      if constexpr (!kGated) store_pair(second, row, feature_ + 8);
    }
  }

 private:
  // Neighbours along features trade, so that each has two features of one row.
  __device__ void store_pair(const float (&y)[2], int row, int feature) const {
    const bool is_odd = threadIdx.x % 8 >= 4;
    const float other = __shfl_xor_sync(0xffffffffu, is_odd ? y[0] : y[1], 4);
    row += row_ + (is_odd ? 1 : 0);
    if (row >= tile_.num_rows || feature >= width_) return;
    auto* out = static_cast<__nv_bfloat16*>(p_.out) +
                static_cast<int64_t>(tile_.first_row + row) * width_ + (feature & ~1);
    *reinterpret_cast<uint32_t*>(out) =
        is_odd ? pack_bfloat16(other, y[1]) : pack_bfloat16(y[0], other);
  }

  const Gating& gating_;
  const ExpertProduct& p_;
  const RowTile& tile_;
  int width_, feature_, row_;
  float bias_[2] = {};
};

// An item whose tile has up to kRows rows, of which one product takes up to 128.
template <typename S, int kRows, bool kGated>
__device__ void compute(const Launch& launch, Walk<S>& walk, int group, char* shared,
                        StageBarriers<S::kStages>& barriers) {
  constexpr int kWUnit = S::kWBytes / 16, kXUnit = S::kXBytes / 16;  // in the coin of descriptions
  constexpr int kFirst = kRows < 128 ? kRows : 128, kSecond = kRows - kFirst;
  const uint64_t w = describe_tile(shared_address(shared) + group * 64 * kLineBytes);
  const uint64_t x = describe_tile(shared_address(shared) + S::kXStart);
  const Finish<kGated> finish(launch, walk.tile, walk.feature_tile(), S::kFeatures);
  float sums[kFirst / 2] = {};
  [[maybe_unused]] float more[kSecond > 0 ? kSecond / 2 : 1] = {};
  int last_stage = 0;
#  pragma unroll 1
  for (int unit = 0; unit < launch.units; ++unit) {
    const int stage = walk.stage;
    barriers.full[stage].wait(walk.parity);
    begin_products();
#  pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
#  pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        const uint64_t a = w + (stage * S::kChunks + chunk) * kWUnit + step * 2;
        const uint64_t b = x + (stage * S::kChunks + chunk) * kXUnit + step * 2;
        multiply_tile(sums, a, b);
        if constexpr (kSecond > 0) multiply_tile(more, a, b + kFirst * kLineBytes / 16);
      }
    }
    commit_products();
    // The stage before is used up once its products are done.
    wait_products<1>();
    if (unit > 0) arrive_everywhere<S::kCluster>(barriers.empty[last_stage]);
    last_stage = stage;
    if (unit + 1 < launch.units) walk.next_unit();
  }
  wait_products<0>();
  arrive_everywhere<S::kCluster>(barriers.empty[last_stage]);
  finish.store(sums, 0);
  if constexpr (kSecond > 0) finish.store(more, kFirst);
  walk.next_unit();
}

template <typename S, bool kGated>
__device__ void consume(const Launch& launch, char* shared, StageBarriers<S::kStages>& barriers) {
  wait_for_predecessor();
  // Of the first lane, so that the compiler sees that all agree.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  Walk<S> walk(launch);
#  pragma unroll 1
  while (!walk.is_done()) {
    const int parts = (walk.tile.num_rows + S::kRowStep - 1) / S::kRowStep;
    [&]<int... i>(std::integer_sequence<int, i...>) {
      const auto run = [&]<int kParts>() {
        if (parts == kParts) {
          compute<S, kParts * S::kRowStep, kGated>(launch, walk, group, shared, barriers);
        }
      };
      (run.template operator()<i + 1>(), ...);
    }
    (std::make_integer_sequence<int, S::kMaxRows / S::kRowStep>());
  }
}

#endif

template <typename S, bool kGated>
__global__ void __launch_bounds__(S::kThreads, 1)
    expert_wgmma_kernel(const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char dynamic[];
  __shared__ StageBarriers<S::kStages> barriers;
  char* shared = dynamic + (-shared_address(dynamic) & 1023);
  if (threadIdx.x == 0) {
    prefetch_map(w_map);
    prefetch_map(x_map);
    barriers.init(S::kConsumers / 32 * S::kCluster);
    publish_barriers();
  }
  __syncthreads();
  if constexpr (S::kCluster > 1) {
    arrive_cluster();
    wait_cluster();
  }
  if (threadIdx.x < S::kConsumers) {
    consume<S, kGated>(launch, shared, barriers);
  } else {
    produce<S>(launch, {w_map, x_map, S::kFeatures / (kGated ? 16 : 8), shared, barriers});
  }
  if constexpr (S::kCluster > 1) {  // whose blocks write to each other's memory until then
    __syncwarp();
    arrive_cluster();
    wait_cluster();
  }
#endif
}

template <typename S, bool kGated>
void launch_shape(cudaStream_t stream, const ExpertProduct& p, int num_multiprocessors) {
  constexpr int kParts = kGated ? 2 : 1;
  const CUtensorMap w_map = make_expert_map(p.weight, p.num_experts, kParts, p.out_features,
                                            p.in_features, S::kFeatures / kParts);
  const CUtensorMap x_map = make_row_map(p.x, p.max_pairs, p.in_features, S::kBoxRows);
  const Launch launch = {p, Gating(p.activation),
                         div_up(p.out_features, S::kFeatures * S::kCluster),
                         div_up(p.in_features, S::kChunks * kChunk)};
  const int clusters =
      std::min(num_multiprocessors / S::kCluster, p.max_tiles * launch.feature_tiles);
  launch_clusters(stream, expert_wgmma_kernel<S, kGated>, clusters * S::kCluster, S::kThreads,
                  S::kCluster, S::kSharedBytes, w_map, x_map, launch);
}

}  // namespace

void launch_expert_wgmma(cudaStream_t stream, const ExpertProduct& product, int tile_rows,
                         int num_multiprocessors) {
  NANOVLLM_CHECK(product.tokens == nullptr);
  with_constant<false, true>(product.is_gated, [&]<bool kGated>() {
    const auto run = tile_rows == kSmallTileRows ? launch_shape<FewRows, kGated>
                                                 : launch_shape<ManyRows, kGated>;
    run(stream, product, num_multiprocessors);
  });
}

}  // namespace nanovllm::cuda
