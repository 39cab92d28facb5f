// What a decoder layer does behind its attention, for up to 8 rows in one kernel:
//   residual += attention Wo^T;  mlp = act_and_mul(norm(residual) Wgu^T);
//   residual += mlp Wd^T;        out = norm(residual) Wnext^T.
// It moves the weights, 2 N K bytes of each product, once; all else is small. As a chain of four
// kernels it would be bound by latencies: each would wait for the last block of the one before.
//
// A block a multiprocessor owns some features of each product. One warp streams their weights
// through shared memory, beginning before the kernel's predecessor has ended; most of them lie
// there when their turn comes. The other warps share K: each loads its elements of the rows
// straight into the operands of the tensor cores, waiting for those that other blocks are yet to
// write (see layer_tail_exchange.cuh), and the warps' sums are added in a fixed order.
//
// In a product the weights are the left operand, 16 features of it, and the rows are the columns of
// the right one. A lane holds 8 neighbours along K where two m16n8k16 want four pairs 8 apart; as
// both operands are read in the same permuted order, the sums are over the same pairs.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/memory.h"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/layer_tail_plan.cuh"
#include "backend/cuda/layer/layer_tail_warp.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = (kTailWarps + 1) * 32;

// Calls f(i, piece) with all weights of this block in the order of their use.
template <typename F>
__device__ void for_each_piece(const TailParams& p, F&& f) {
  int i = 0;
  for (int step = 0; step < kNumTailSteps; ++step) {
    const TailProduct& product = p.products[step];
    const TailTiles tiles = tiles_of_block(p, step);
    for (int tile = tiles.first; tile < tiles.first + tiles.count; ++tile) {
      for (int k = 0; k < product.depth; k += kSlotDepth) {
        for (int half = 0; half < halves_of(step); ++half) {
          int feature = tile * tile_features_of(step), end = product.features;
          if (step == kGateUpStep) {
            feature += half * product.features;
            end += half * product.features;
          } else {
            feature += half * 8;
          }
          f(i++, SlotPiece{product.weight + static_cast<int64_t>(feature) * product.depth + k,
                           max(0, min(kSlotFeatures, end - feature)), product.depth,
                           min(kSlotDepth, product.depth - k), slot_row_bytes(halves_of(step))});
        }
      }
    }
  }
}

// Weights are older than all predecessors. What finds no slot yet goes into L2 at once: if memory
// had to send it later, it would be in the way of what the blocks tell each other.
[[maybe_unused]] __device__ void stream_weights(const TailParams& p, TailShared& shared) {
  RingWalk ring(shared.ring);
  for_each_piece(p, [&](int i, const SlotPiece& piece) {
    if (i < kTailSlots) {
      ring.fill(piece);
    } else {
      piece.prefetch();
    }
  });
  for_each_piece(p, [&](int i, const SlotPiece& piece) {
    if (i >= kTailSlots) ring.fill(piece);
  });
}

// Few enough registers for blocks of an attention beside one of these.
template <Activation kActivation, int kRows>
__global__ void __maxnreg__(112) layer_tail_kernel(const __grid_constant__ TailParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // older devices have no bulk copies
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<TailShared*>(memory);
  run_tail_block<TailWarp<kActivation, kRows>>(p, shared, [&] { stream_weights(p, shared); });
#endif
}

// Whether the kernel takes the products, as far as one alone says.
bool describe(TailProduct& product, const SkinnyProduct& source, int step, int multiprocessors) {
  product.describe(source, step);
  product.tiles = div_up(div_up(product.features, tile_features_of(step)), multiprocessors);
  const bool has_norm = halves_of(step) == 2;
  const int slots = product.tiles * div_up(product.depth, kSlotDepth) * halves_of(step);
  return source.layout == WeightLayout::kPlain && product.features % 8 == 0 &&
         product.depth % kWarpDepth == 0 && slots <= kTailSlots &&
         product.depth <= (has_norm ? kMaxTailHidden : kMaxTailChunks * kSlotDepth) &&
         product.tiles <= (has_norm ? kMaxTiles : kMaxHalfTiles);
}

// Whether it takes them all.
bool describe(TailParams& p, std::span<const SkinnyProduct, 4> products, int multiprocessors) {
  if (p.rows > kTailRows || products[kNextStep].out_dtype != DType::kBFloat16) return false;
  for (int step = 0; step < kNumTailSteps; ++step) {
    if (!describe(p.products[step], products[step], step, multiprocessors)) return false;
  }
  return p.products[kGateUpStep].features <= kMaxTailWidth;
}

}  // namespace

// Every multiprocessor must hold a block: the limits of threads and registers are those of all
// devices that have as much shared memory.
bool runs_tail_kernels(const DeviceTraits& device) {
  return device.has_programmatic_launch && device.num_multiprocessors() <= kMaxTailBlocks &&
         std::max(sizeof(TailShared), large_tail_shared_bytes()) <= device.block_bytes();
}

LayerTailKernel::Made LayerTailKernel::make(DeviceContext& device, std::string engine) {
  if (!runs_tail_kernels(device.traits())) return {};
  auto [hold, holder] = device.take(Exclusive::kMeetingBlocks, std::move(engine));
  if (!hold) return {nullptr, std::move(holder)};
  std::unique_ptr<LayerTailKernel> kernel(
      new LayerTailKernel(*std::move(hold), device.traits().num_multiprocessors()));
  const auto all_set = [](size_t bytes) {
    auto memory = std::make_unique<DeviceBuffer>(bytes);
    NANOVLLM_CUDA_CHECK(cudaMemset(memory->data(), 0xff, bytes));
    return memory;
  };
  kernel->memory_ = all_set(sizeof(TailMemory));
  kernel->large_memory_ = all_set(large_tail_memory_bytes());
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  return {std::move(kernel), {}};
}

LayerTailKernel::LayerTailKernel(DeviceContext::Hold hold, int multiprocessors)
    : hold_(std::move(hold)), multiprocessors_(multiprocessors) {}

LayerTailKernel::~LayerTailKernel() = default;

void LayerTailKernel::launch_large(const PeerQueue& queue,
                                   std::span<const SkinnyProduct, 4> products) const {
  launch_large_tail(queue, products, multiprocessors_, large_memory_->data());
}

bool LayerTailKernel::takes(std::span<const SkinnyProduct, 4> products, int multiprocessors) {
  TailParams p(products);
  return describe(p, products, multiprocessors);
}

void LayerTailKernel::launch(cudaStream_t stream,
                             std::span<const SkinnyProduct, 4> products) const {
  TailParams p(products);
  NANOVLLM_CHECK(describe(p, products, multiprocessors_));
  p.memory = static_cast<TailMemory*>(memory_->data());
  using enum Activation;  // those that are a factor of up
  const auto rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(p.rows)));
  with_constant<kSilu, kGelu, kGeluTanh>(
      products[kGateUpStep].activation, [&]<Activation kActivation>() {
        with_constant<1, 2, 4, kTailRows>(rows, [&]<int kRows>() {
          nanovllm::cuda::launch(stream, layer_tail_kernel<kActivation, kRows>, multiprocessors_,
                                 kThreads, sizeof(TailShared), p);
        });
      });
}

}  // namespace nanovllm::cuda
