// What a decoder layer does behind its attention, as layer_tail.cu has it, for layers too large for
// that kernel: up to 8 rows. It moves the weights, 2 N K bytes of each product, once.
//
// Here bandwidth counts and not latency. A block a multiprocessor owns some features of each
// product; one warp streams their weights through a ring in shared memory from the first product to
// the last. The other warps share K and follow: what they wait for at the border of two products,
// the rows that other blocks are yet to write, is to take less time than the ring takes to fill.
// What they read besides is fetched ahead, as any miss of L2 stands in line behind the weights.
//
// All of a block's features take part in each kSlotDepth elements of K, in turn, so that a warp
// needs only these elements of the rows at once; sums stay in registers to the product's end. The
// rows of a slot are 2,048 bytes apart, so that the two that a quarter of a warp reads lie in the
// same banks: reading takes two passes, a third of the time that the copies take.
#include "backend/cuda/device/memory.h"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/layer_tail_large.cuh"
#include "backend/cuda/peers/peer_launch.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = (kTailWarps + 1) * 32;
static_assert(sizeof(LargeTailShared) <= 227 << 10);  // what Hopper gives a block

using Ring = RingWalk<kLargeSlots, kLargeRowBytes>;

// Of gate and up, `halves` 2, slots take turns.
[[maybe_unused]] __device__ void stream_pass(const LargeProduct& product, const OwnFeatures& own,
                                             int halves, Ring& ring) {
#pragma unroll 1
  for (int k = 0; k < product.depth; k += kSlotDepth) {
#pragma unroll 1
    for (int slot = 0; slot < own.num_slots; ++slot) {
      const int feature =
          own.first + slot / halves * kSlotFeatures + slot % halves * product.features;
      ring.fill({product.weight + static_cast<int64_t>(feature) * product.depth + k, kSlotFeatures,
                 product.depth, min(kSlotDepth, product.depth - k), kLargeRowBytes},
                kEvictFirst);
    }
  }
}

// By one warp: the weights of this block in the order of their use. They are older than all
// predecessors.
[[maybe_unused]] __device__ void stream_weights(const LargeTailParams& p, LargeTailShared& shared) {
  Ring ring(shared.ring);
#pragma unroll 1
  for (int step = 0; step < p.num_steps; ++step) {
#pragma unroll 1
    for (int pass = 0; pass < p.products[step].num_passes; ++pass) {
      stream_pass(p.products[step], OwnFeatures(p, step, pass), step == kGateUpStep ? 2 : 1, ring);
    }
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    large_tail_kernel(const __grid_constant__ LargeTailParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // older devices have no bulk copies
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<LargeTailShared*>(memory);
  run_tail_block<LargeTailWarp<kTiles>>(p, shared, [&] { stream_weights(p, shared); });
#endif
}

// Whether the kernel takes the products, as far as one alone says.
bool describe(LargeProduct& product, const SkinnyProduct& source, int step, int multiprocessors) {
  product.describe(source, step);
  if (source.layout != WeightLayout::kPlain || product.features == 0 ||
      product.features % kSlotFeatures != 0 || product.depth % kLargeWarpDepth != 0) {
    return false;
  }
  const int block_slots = div_up(product.features / kSlotFeatures, multiprocessors);
  const int pass_slots = step == kGateUpStep ? kMaxLargeTiles : kMaxNarrowTiles * 2;
  product.num_passes = div_up(block_slots, pass_slots);
  product.block_features = block_slots * kSlotFeatures;
  product.pass_features = div_up(block_slots, product.num_passes) * kSlotFeatures;
  return true;
}

// Whether it takes them all.
bool describe(LargeTailParams& p, std::span<const SkinnyProduct, 4> products, int multiprocessors) {
  p.num_steps = products[kNextStep].weight != nullptr ? kNumTailSteps : kNextStep;
  for (int step = 0; step < p.num_steps; ++step) {
    if (!describe(p.products[step], products[step], step, multiprocessors)) return false;
  }
  return p.rows <= kTailRows && products[kNextStep].out_dtype == DType::kBFloat16 &&
         p.hidden() <= kMaxLargeHidden && p.products[kGateUpStep].features <= kMaxLargeWidth;
}

}  // namespace

size_t large_tail_shared_bytes() { return sizeof(LargeTailShared); }
size_t large_tail_memory_bytes() { return sizeof(LargeTailMemory); }

bool LayerTailKernel::takes_large(std::span<const SkinnyProduct, 4> products, int multiprocessors) {
  LargeTailParams p(products);
  return describe(p, products, multiprocessors);
}

void launch_large_tail(const PeerQueue& queue, std::span<const SkinnyProduct, 4> products,
                       int multiprocessors, void* memory) {
  LargeTailParams p(products);
  NANOVLLM_CHECK(describe(p, products, multiprocessors));
  p.activation = products[kGateUpStep].activation;
  p.memory = static_cast<LargeTailMemory*>(memory);
  p.group = queue.group;
  // Few tiles gain 4% by code of their own (Qwen3-1.7B on an H200).
  const bool is_narrow = p.products[kGateUpStep].pass_features <= kMaxLargeTiles / 2 * 8;
  launch_together(
      queue, is_narrow ? large_tail_kernel<kMaxLargeTiles / 2> : large_tail_kernel<kMaxLargeTiles>,
      multiprocessors, kThreads, sizeof(LargeTailShared), p);
}

}  // namespace nanovllm::cuda
