// What a step would take at batch 1 to 8 if one launch went through all layers and its weights
// never stopped streaming: 28 times what layer_tail.cu computes for Qwen3-0.6B, with the
// attention's output taken to be the queries. Beside the stream of weights alone and today's launch
// a layer. Blocks, of one warp that fills a ring with weights and eight that share K, hand their
// rows to each other by the holes of hand_over.cuh. Fails where the result is not what plain
// kernels give.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "backend/cuda/device/device_context.h"
#include "backend/cuda/device/hand_over.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/layer_tail_ring.cuh"
#include "base/assert.h"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

constexpr int kMaxRows = 8, kBlocks = kHidden / 8;
[[maybe_unused]] constexpr int kUnits = 4;  // of 32 elements of K, that a warp has of a slot
// Two groups of warps compute, for whose registers a third one gives up its; its first warp fills.
constexpr int kWarps = 8, kThreads = kWarps * 32 + 128;
constexpr int kSlots = 12, kRowBytes = kSlotDepth * 2 + 64;
// Features of a block, in tiles of 8.
[[maybe_unused]] constexpr int kGateTiles = kWidth / kBlocks / 8, kQkvTiles = kQkv / kBlocks / 8;

// What the blocks hand over of a row, the words of a block in a line of their own: 8 numbers of the
// residual stream, or 12 or 16 pairs.
using Lines = uint32_t[kBlocks][32];
using Step = Lines[kLayers][kProducts.size()][kMaxRows];
struct Params {
  std::array<LayerWeights, kLayers> layers;
  const float* norms;     // [layers, 2, H]
  const float* residual;  // [R, H], of the first layer
  const Lines* first;     // [R]: of which the queries are the first layer's attention
  Step *words, *next;     // of this launch, all holes, and of the next
  int rows;
  // Halves of a slot whose weights are under way at once, at most: they are in the way of words. 2
  // or more; the second while the block waits for words.
  int window, calm_window;
};

struct Shared {
  RingMemory<kSlots, kRowBytes> ring;
  float sums[2][kWarps][kMaxRows][kGateTiles * 16 + 4];  // products take the two in turn
  float squares[2][kWarps][kMaxRows];
  volatile bool waits;  // for words: the first warp, for all
};
using Ring = RingWalk<kSlots, kRowBytes>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// By the warp that fills the ring, as RingWalk does, but half a slot at a time.
__device__ void fill_ring(const Params& p, Shared& shared) {
  auto& [full, empty] = shared.ring.barriers;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace<kSlots> at, oldest;  // and the first slot that may be under way
  int under_way = 0;
  const auto fill = [&](const Bf16* rows, int depth) {
    empty[at.place].wait(at.parity ^ 1);
    for (int half = 0; half < 2; ++half) {
      while (under_way >= (__any_sync(0xffffffffu, shared.waits) ? p.calm_window : p.window)) {
        full[oldest.place].wait(oldest.parity);
        oldest.next();
        under_way -= 2;
      }
      if (half == 0 && lane == 0) full[at.place].expect(kSlotFeatures * kSlotDepth * 2);
      __syncwarp();
      if (lane / 4 == half) {
        copy_bulk(shared_address(shared.ring.slots[at.place]) + lane * kRowBytes,
                  rows + int64_t{lane} * depth, kSlotDepth * 2, full[at.place], kEvictFirst);
      }
      ++under_way;
    }
    at.next();
  };
  // The block's tiles of a weight; with a second half of features, a tile of each in turn.
  const auto stream = [&](const Bf16* weight, int tiles, int depth, int second = 0) {
    const int first = static_cast<int>(blockIdx.x) * tiles * 8;
    for (int i = 0; i < tiles * (second > 0 ? 2 : 1); ++i) {
      const int feature = second > 0 ? first + i / 2 * 8 + i % 2 * second : first + i * 8;
      for (int k = 0; k < depth; k += kSlotDepth) {
        fill(weight + int64_t{feature} * depth + k, depth);
      }
    }
  };
  for (const LayerWeights& layer : p.layers) {
    stream(layer[0], 1, kHeads);
    stream(layer[1], kGateTiles, kHidden, kWidth);
    stream(layer[2], 1, kWidth);
    stream(layer[3], kQkvTiles, kHidden);
  }
}

class Warp {
 public:
  __device__ Warp(const Params& p, Shared& shared) : p_(p), shared_(shared), ring_(shared.ring) {}

  __device__ void run() {
    const int own = thread_ / 8 * kHidden + block_ * 8 + thread_ % 8;
    float residual = thread_ < p_.rows * 8 ? p_.residual[own] : 0, factor[kUnits][8];
    const Lines* attention = p_.first;
    for (int i = 0; i < kLayers; ++i) {
      auto& words = (*p_.words)[i];
      load_factor(factor, p_.norms + i * 2 * kHidden);
      add<2, kQkvTiles>(attention[row_], residual, words[0]);
      clear_next(i);
      multiply_norm<kGateTiles * 2>(words[0], factor);
      finish_pairs<true>(words[1], kGateTiles);
      load_factor(factor, p_.norms + (i * 2 + 1) * kHidden);
      add<3, kGateTiles>(words[1][row_], residual, words[2]);
      multiply_norm<kQkvTiles>(words[2], factor);
      finish_pairs<false>(words[3], kQkvTiles);
      attention = words[3];
    }
  }

 private:
  __device__ void load_factor(float (&factor)[kUnits][8], const float* weight) const {
#  pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      load_vector(factor[unit], weight + first_ + unit * 32);
    }
  }

  // x[i] = load(i), again where there are holes, until no lane has any.
  template <int n, typename Load>
  __device__ void await(uint4 (&x)[n], Load&& load) {
    if (thread_ == 0) shared_.waits = true;
    for (int tries = 0;; ++tries) {
      uint32_t largest = 0;
#  pragma unroll
      for (int i = 0; i < n; ++i) {
        if (tries == 0 || largest_of(x[i]) == kHole) x[i] = load(i);
      }
#  pragma unroll
      for (int i = 0; i < n; ++i) largest = max(largest, largest_of(x[i]));
      if (!__any_sync(0xffffffffu, largest == kHole)) break;
      if (tries == 1 << 20) __trap();
    }
    if (thread_ == 0) shared_.waits = false;
  }

  // A product of kChunks slots and one tile, which is added to the residual stream. A line has
  // kTiles times 8 numbers.
  template <int kChunks, int kTiles>
  __device__ void add(const Lines& words, float& residual, Lines* rows) {
    uint4 x[kChunks * kUnits];
    await(x, [&](int i) {
      const int eighth = (i / kUnits * kSlotDepth + first_ + i % kUnits * 32) / 8;
      return load_words(words[eighth / kTiles] + eighth % kTiles * 4);
    });
    multiply<1>(x);
    if (thread_ >= p_.rows * 8) return;
    const int row = thread_ / 8, feature = thread_ % 8;
    float sum = 0;
#  pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += shared_.sums[turn_][warp][row][feature];
    residual += round_to_bfloat16(sum);
    store_word(&rows[row][block_][feature], __float_as_uint(residual));
  }

  template <int kTiles>
  __device__ void multiply_norm(const Lines* rows, const float (&factor)[kUnits][8]) {
    uint4 words[kUnits * 2], x[kUnits];
    await(words, [&](int i) { return load_words(rows[row_][first_ / 8 + i / 2 * 4] + i % 2 * 4); });
    float squares = 0;
#  pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const uint4 &low = words[unit * 2], &high = words[unit * 2 + 1];
      float v[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),  __uint_as_float(low.z),
                    __uint_as_float(low.w),  __uint_as_float(high.x), __uint_as_float(high.y),
                    __uint_as_float(high.z), __uint_as_float(high.w)};
#  pragma unroll
      for (int e = 0; e < 8; ++e) {
        squares += v[e] * v[e];
        v[e] *= factor[unit][e];
      }
      x[unit] = {pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]), pack_bfloat16(v[4], v[5]),
                 pack_bfloat16(v[6], v[7])};
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    if (lane_ % 4 == 0) shared_.squares[turn_ ^ 1][warp_][lane_ / 4] = squares;
    multiply<kTiles>(x);
  }

  // Of tiles of 8 features, two at once where there are; the block's sums are there on return.
  template <int kTiles, int n>
  __device__ void multiply(const uint4 (&x)[n]) {
    constexpr int kChunks = n / kUnits, kAtOnce = kTiles > 1 ? 2 : 1;
    turn_ ^= 1;
    const uint32_t offset = lane_ / 4 * kRowBytes + first_ * 2;
#  pragma unroll
    for (int tile = 0; tile < kTiles; tile += kAtOnce) {
      float sums[2][4] = {};
#  pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint32_t low = ring_.take_full() + offset;
        const uint32_t high = kAtOnce == 2 ? ring_.take_full() + offset : 0;
#  pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          const uint4 a = load_shared(low + unit * 64);
          const uint4 b = kAtOnce == 2 ? load_shared(high + unit * 64) : uint4{0, 0, 0, 0};
          const uint4& y = x[chunk * kUnits + unit];
          mma_bf16(sums[0], {a.x, b.x, a.y, b.y}, y.x, y.y);
          mma_bf16(sums[1], {a.z, b.z, a.w, b.w}, y.z, y.w);
        }
      }
      ring_.give_back(kAtOnce * kChunks);
#  pragma unroll
      for (int e = 0; e < 2 * kAtOnce; ++e) {
        const int row = lane_ % 4 * 2 + e % 2;
        if (row < p_.rows) {
          shared_.sums[turn_][warp_][row][(tile + e / 2) * 8 + lane_ / 4] = sums[0][e] + sums[1][e];
        }
      }
    }
    sync_threads<kWarps * 32>(1);
  }

  // Two neighbouring features a thread: of gate and up, whose tiles take turns, or as they are.
  template <bool kIsGateUp>
  __device__ void finish_pairs(Lines* rows, int tiles) {
    const int pairs = tiles * 4, row = thread_ / pairs, i = thread_ % pairs;
    if (row >= p_.rows) return;
    float squares = 0, low[2] = {}, high[2] = {};
    const int column = kIsGateUp ? i / 4 * 16 + i % 4 * 2 : i * 2;
#  pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float* sums = &shared_.sums[turn_][warp][row][column];
      squares += shared_.squares[turn_][warp][row];
      for (int e = 0; e < 2; ++e) low[e] += sums[e];
      for (int e = 0; e < 2 && kIsGateUp; ++e) high[e] += sums[8 + e];
    }
    const float scale = rsqrtf(squares / kHidden + kEps);
    for (int e = 0; e < 2; ++e) {
      low[e] *= scale;
      if constexpr (kIsGateUp) {
        low[e] = gate_and_mul<Activation::kSilu>(round_to_bfloat16(low[e]),
                                                 round_to_bfloat16(high[e] * scale));
      }
    }
    store_word(&rows[row][block_][i], pack_bfloat16(low[0], low[1]));
  }

  // Of this block's words of a layer, a thread 4.
  __device__ void clear_next(int layer) const {
    const int row = thread_ / 16, product = thread_ % 16 / 4, i = thread_ % 4;
    const int words = product == 1 ? kGateTiles * 4 : product == 3 ? kQkvTiles * 4 : 8;
    if (row < p_.rows && i * 4 < words) {
      store_words((*p_.next)[layer][product][row][block_] + i * 4, kHoles);
    }
  }

  const Params& p_;
  Shared& shared_;
  Ring ring_;
  const int thread_ = threadIdx.x, lane_ = thread_ % 32, warp_ = thread_ / 32, block_ = blockIdx.x;
  const int row_ = min(lane_ / 4, p_.rows - 1);  // whose elements the lane holds
  // Of a slot's elements, and every 32nd from there.
  const int first_ = warp_ * kUnits * 32 + lane_ % 4 * 8;
  int turn_ = 0;
};
#endif

template <bool kStreamOnly>
__global__ void __launch_bounds__(kThreads, 1) loop_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    shared.waits = false;
    shared.ring.barriers.init(kWarps);
    publish_barriers();
  }
  __syncthreads();
  if (thread >= kWarps * 32) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread < kWarps * 32 + 32) fill_ring(p, shared);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  if (!kStreamOnly) return Warp(p, shared).run();
  Ring ring(shared.ring);
  for (int i = 0; i < kLayers * (5 + kGateTiles * 2 + kQkvTiles); ++i) {
    ring.take_full();
    ring.give_back(1);
  }
#endif
}

// Of the blocks' lines, `count` numbers each.
template <typename T>
void append_lines(std::vector<float>& to, const Lines& lines, int count) {
  std::vector<T> values(kBlocks * count);
  NANOVLLM_CUDA_CHECK(cudaMemcpy2D(values.data(), count * sizeof(T), lines, sizeof lines[0],
                                   count * sizeof(T), kBlocks, cudaMemcpyDeviceToHost));
  to.insert(to.end(), values.begin(), values.end());
}

class Loop {
 public:
  Loop() {
    NANOVLLM_CUDA_CHECK(cudaMemset(steps_, 0xff, 2 * sizeof(Step)));
    constexpr int kOwnBytes = kQkv / kBlocks * 2;
    for (int row = 0; row < kMaxRows; ++row) {
      NANOVLLM_CUDA_CHECK(cudaMemcpy2D(first_[row], sizeof(Lines) / kBlocks,
                                       start_.qkv + row * kQkv, kOwnBytes, kOwnBytes, kBlocks,
                                       cudaMemcpyDeviceToDevice));
    }
  }

  // Microseconds of a launch.
  double run(bool stream_only, int rows, int window, int calm_window) {
    Params p = {layers_, norms_, start_.residual, first_, &steps_[turn_], &steps_[turn_ ^ 1],
                rows,    window, calm_window};
    if (!stream_only) turn_ ^= 1;
    const auto kernel =
        reinterpret_cast<const void*>(stream_only ? loop_kernel<true> : loop_kernel<false>);
    NANOVLLM_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    void* arguments[] = {&p};
    return timer_.time([&] {
      NANOVLLM_CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, kBlocks, kThreads, arguments,
                                                      sizeof(Shared), nullptr));
    });
  }

  // The relative error of the last residual stream and of what follows it.
  double error(int rows) {
    const Activations want(rows);
    NANOVLLM_CUDA_CHECK(
        cudaMemcpy(want.residual, start_.residual, rows * kHidden * 4, cudaMemcpyDeviceToDevice));
    NANOVLLM_CUDA_CHECK(
        cudaMemcpy(want.qkv, start_.qkv, rows * kQkv * 2, cudaMemcpyDeviceToDevice));
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < 4; ++i) {
        plain_product(kProducts[i], rows, layers_[layer][i], want.inputs()[i],
                      i == 0 ? kQkv : kProducts[i].in_features, norm(layer, i), want.outputs()[i]);
      }
    }
    const auto& last = steps_[turn_][kLayers - 1];
    run(false, rows, 4, 2);
    std::vector<float> residual, qkv;
    for (int row = 0; row < rows; ++row) {
      append_lines<float>(residual, last[2][row], 8);
      append_lines<Bf16>(qkv, last[3][row], kQkv / kBlocks);
    }
    return std::max(relative_error(residual, to_host<float>(want.residual, rows * kHidden)),
                    relative_error(qkv, to_host<Bf16>(want.qkv, rows * kQkv)));
  }

  cudaGraphExec_t capture_today(const LayerTailKernel& kernel, int rows) const {
    return capture([&](cudaStream_t stream) {
      for (int layer = 0; layer < kLayers; ++layer) {
        std::array<SkinnyProduct, 4> products;
        for (int i = 0; i < 4; ++i) {
          today_.describe(products[i], i, rows, layers_[layer]);
          if (kProducts[i].has_norm()) products[i].norm = {norm(layer, i), kEps};
        }
        kernel.launch(stream, products);
      }
    });
  }
  double run(cudaGraphExec_t graph) {
    return timer_.time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(graph, nullptr)); });
  }

 private:
  const float* norm(int layer, int product) const {
    return norms_ + (layer * 2 + product / 2) * kHidden;
  }

  CudaTimer timer_{nullptr};
  const std::array<LayerWeights, kLayers> layers_ = random_layers();
  const float* norms_ = random<float>(kLayers * 2 * kHidden, 1, 0.2f);
  const Activations start_{kMaxRows}, today_{kMaxRows};
  Lines* first_ = allocate<Lines>(kMaxRows);
  Step* steps_ = allocate<Step>(2);
  int turn_ = 0;  // whose words are holes
};

int run() {
  const cudaDeviceProp device = the_device();
  const auto today = LayerTailKernel::make(DeviceContext::of(0), "this benchmark").kernel;
  NANOVLLM_CHECK(today != nullptr);
  Loop loop;
  int failures = 0;
  constexpr double kLayerBytes = 2. * kHidden * (kHeads + 3 * kWidth + kQkv);
  constexpr int kAll = 2 * kSlots;
  constexpr std::array<std::pair<int, int>, 3> kWindows = {{{3, 3}, {4, 2}, {kAll, kAll}}};
  std::printf(
      "%s, us a layer of %.1f MB, medians of 11 rounds; ratios to today's in the same round\n",
      device.name, kLayerBytes * 1e-6);
  for (const int rows : {1, 2, 4, 8}) {
    const double error = loop.error(rows);
    failures += !(error < 2e-2);
    const cudaGraphExec_t graph = loop.capture_today(*today, rows);
    // The second of two runs, which has its words where steps do.
    const std::vector<Medians> medians = in_turns(11, 1 + 2 * kWindows.size(), [&](int way) {
      const auto [window, calm_window] = kWindows[(way - 1) / 2];
      double time = 0;
      for (int i = 0; i < 2; ++i) {
        time = way == 0 ? loop.run(graph) : loop.run(way % 2 == 1, rows, window, calm_window);
      }
      return time / kLayers;
    });
    std::printf("%d rows, relative error %.1e%s: today %.2f\n", rows, error,
                error < 2e-2 ? "" : " WRONG", medians[0].time);
    for (size_t i = 0; i < kWindows.size(); ++i) {
      const Medians &stream = medians[1 + i * 2], &both = medians[2 + i * 2];
      std::printf(
          "  %3d KiB under way, %3d while waiting: stream alone %.2f (%.2f TB/s), loop %.2f "
          "(%.3f)\n",
          kWindows[i].first * 8, kWindows[i].second * 8, stream.time,
          kLayerBytes / stream.time * 1e-6, both.time, both.ratio);
    }
  }
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
