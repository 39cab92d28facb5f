// What a step would take at batch 1 to 8 if one launch went through all layers and its weights
// never stopped streaming: 28 times what layer_tail.cu computes for Qwen3-0.6B, with the
// attention's output taken to be the queries. Beside the stream of weights alone and today's launch
// a layer, in turns. Blocks, of one warp that fills a ring with weights and eight that share K,
// hand their rows to each other by the holes of hand_over.cuh. Fails where the result is not what
// plain kernels give.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "backend/cuda/hand_over.cuh"
#include "backend/cuda/layer/activation.cuh"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/layer_tail_ring.cuh"
#include "backend/cuda/vector.cuh"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kLayers = 28, kHidden = 1024, kHeads = 2048, kWidth = 3072, kQkv = 4096, kMaxRows = 8;
constexpr int kBlocks = kHidden / 8, kWarps = 8, kThreads = (kWarps + 1) * 32, kUnits = 4;
constexpr int kSlots = 12, kRowBytes = kSlotDepth * 2 + 64;
// Features of a block, in tiles of 8.
constexpr int kGateTiles = kWidth / kBlocks / 8, kQkvTiles = kQkv / kBlocks / 8;
constexpr int64_t kLayerBytes = int64_t{2} * kHidden * (kHeads + 3 * kWidth + kQkv);
constexpr float kEps = 1e-6f;

struct Layer {
  const Bf16 *o, *gate_up, *down, *qkv;
  const float *norm, *next_norm;
};
// Words of a row that are handed over, those of a block in lines of their own: 8 numbers of the
// residual stream, or 12 or 16 pairs.
struct Words {
  uint32_t residual[2][kBlocks][32], mlp[kBlocks][32], qkv[kBlocks][32];
};
constexpr int kMaxCopies = 2;  // for readers in turn, so that fewer ask one place
using Step = Words[kLayers][kMaxCopies][kMaxRows];
struct Params {
  Layer layers[kLayers];
  const float* residual;  // [R, H], of the first layer
  const Words* first;     // whose queries are the first layer's attention
  Step *words, *next;     // of this launch, all holes, and of the next
  int rows, copies;
  // Halves of a slot whose weights are under way at once, at most: they are in the way of words. 2
  // or more; the second while the block waits for words.
  int window, calm_window;
};
enum class Mode { kAll, kStreamOnly, kRowsOnly };

struct Shared {
  RingMemory<kSlots, kRowBytes> ring;
  float sums[2][kWarps][kMaxRows][kGateTiles * 16 + 4];  // products take the two in turn
  float squares[2][kWarps][kMaxRows];
  volatile bool waits;  // for words: the first warp, for all
};
using Ring = RingWalk<kSlots, kRowBytes>;

// The warp that fills the ring, as RingWalk does, but half a slot at a time.
class Filler {
 public:
  __device__ Filler(const Params& p, Shared& shared) : p_(p), shared_(shared) {}

  __device__ void stream(const Bf16* weight, int first, int tiles, int depth, int second = 0) {
    for (int tile = 0; tile < tiles; ++tile) {
      for (int half = 0; half < (second > 0 ? 2 : 1); ++half) {
        const Bf16* rows = weight + int64_t{first + tile * 8 + half * second} * depth;
        for (int k = 0; k < depth; k += kSlotDepth) fill(rows + k, depth);
      }
    }
  }

 private:
  __device__ void fill(const Bf16* rows, int depth) {
    Barrier& full = shared_.ring.barriers.full[at_.place];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    shared_.ring.barriers.empty[at_.place].wait(at_.parity ^ 1);
    for (int half = 0; half < 2; ++half) {
      while (under_way_ >= (__any_sync(0xffffffffu, shared_.waits) ? p_.calm_window : p_.window)) {
        shared_.ring.barriers.full[oldest_.place].wait(oldest_.parity);
        oldest_.next();
        under_way_ -= 2;
      }
      if (half == 0 && lane == 0) full.expect(kSlotFeatures * kSlotDepth * 2);
      __syncwarp();
      if (lane / 4 == half) {
        copy_bulk(shared_address(shared_.ring.slots[at_.place]) + lane * kRowBytes,
                  rows + int64_t{lane} * depth, kSlotDepth * 2, full, kEvictFirst);
      }
      ++under_way_;
    }
    at_.next();
  }

  const Params& p_;
  Shared& shared_;
  RingPlace<kSlots> at_, oldest_;  // and the first slot that may be under way
  int under_way_ = 0;
};

template <bool kHasWeights>
class Warp {
 public:
  __device__ Warp(const Params& p, Shared& shared) : p_(p), shared_(shared), ring_(shared.ring) {}

  __device__ void run() {
    const int own = thread_ / 8 * kHidden + blockIdx.x * 8 + thread_ % 8;
    float residual = thread_ < p_.rows * 8 ? p_.residual[own] : 0;
    for (int i = 0; i < kLayers; ++i) {
      const Layer& layer = p_.layers[i];
      auto& words = (*p_.words)[i];
      const Words* own_copy = words[copy_];
      float factor[kUnits][8];
      load_factor(factor, layer.norm);
      const Words* before = i == 0 ? p_.first : (*p_.words)[i - 1][copy_];
      add<2, kQkvTiles>(before[row_].qkv[0], residual, words[0], 0);
      clear_next(i);
      multiply_norm<kGateTiles * 2>(own_copy, 0, factor);
      finish_pairs<true>(words[0], kGateTiles);
      load_factor(factor, layer.next_norm);
      add<3, kGateTiles>(own_copy[row_].mlp[0], residual, words[0], 1);
      multiply_norm<kQkvTiles>(own_copy, 1, factor);
      finish_pairs<false>(words[0], kQkvTiles);
    }
  }

 private:
  __device__ void load_factor(float (&factor)[kUnits][8], const float* weight) const {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
      load_vector(factor[unit], weight + first_ + unit * 32);
  }

  // x[i] = load(i), again where there are holes, until no lane has any.
  template <int n, typename Load>
  __device__ void await(uint4 (&x)[n], Load&& load) {
    if (thread_ == 0) shared_.waits = true;
    for (int tries = 0;; ++tries) {
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if (tries == 0 || largest_of(x[i]) == kHole) x[i] = load(i);
      }
#pragma unroll
      for (int i = 0; i < n; ++i) largest = max(largest, largest_of(x[i]));
      if (!__any_sync(0xffffffffu, largest == kHole)) break;
      if (tries == 1 << 20) __trap();
    }
    if (thread_ == 0) shared_.waits = false;
  }

  // To all copies of a word; `word` is the first.
  __device__ void hand_over(uint32_t* word, uint32_t x) const {
    for (int copy = 0; copy < p_.copies; ++copy) {
      store_word(word + copy * static_cast<int>(kMaxRows * sizeof(Words) / 4), x);
    }
  }

  // A product of kChunks slots and one tile, which is added to the residual stream. A line has
  // kTiles times 8 numbers.
  template <int kChunks, int kTiles>
  __device__ void add(const uint32_t* words, float& residual, Words* rows, int which) {
    uint4 x[kChunks * kUnits];
    await(x, [&](int i) {
      const int eighth = (i / kUnits * kSlotDepth + first_ + i % kUnits * 32) / 8;
      return load_words(words + eighth / kTiles * 32 + eighth % kTiles * 4);
    });
    multiply<1>(x);
    if (thread_ >= p_.rows * 8) return;
    const int row = thread_ / 8, feature = thread_ % 8;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += shared_.sums[turn_][warp][row][feature];
    residual += round_to_bfloat16(sum);
    hand_over(&rows[row].residual[which][blockIdx.x][feature], __float_as_uint(residual));
  }

  template <int kTiles>
  __device__ void multiply_norm(const Words* rows, int which, const float (&factor)[kUnits][8]) {
    uint4 words[kUnits * 2], x[kUnits];
    const uint32_t* source = rows[row_].residual[which][first_ / 8];
    await(words, [&](int i) { return load_words(source + i / 2 * 4 * 32 + i % 2 * 4); });
    float squares = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const uint4 &low = words[unit * 2], &high = words[unit * 2 + 1];
      float v[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),  __uint_as_float(low.z),
                    __uint_as_float(low.w),  __uint_as_float(high.x), __uint_as_float(high.y),
                    __uint_as_float(high.z), __uint_as_float(high.w)};
#pragma unroll
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
    const uint32_t offset = lane_ / 4 * kRowBytes + (warp_ * kUnits * 32 + lane_ % 4 * 8) * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += kAtOnce) {
      float sums[2][4] = {};
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint32_t low = take() + offset, high = kAtOnce == 2 ? take() + offset : 0;
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          const uint4 a = load_shared(low + unit * 64);
          const uint4 b = kAtOnce == 2 ? load_shared(high + unit * 64) : uint4{0, 0, 0, 0};
          const uint4& y = x[chunk * kUnits + unit];
          mma_bf16(sums[0], {a.x, b.x, a.y, b.y}, y.x, y.y);
          mma_bf16(sums[1], {a.z, b.z, a.w, b.w}, y.z, y.w);
        }
      }
      if (kHasWeights) ring_.give_back(kAtOnce * kChunks);
#pragma unroll
      for (int e = 0; e < 2 * kAtOnce; ++e) {
        const int row = lane_ % 4 * 2 + e % 2;
        if (row < p_.rows) {
          shared_.sums[turn_][warp_][row][(tile + e / 2) * 8 + lane_ / 4] = sums[0][e] + sums[1][e];
        }
      }
    }
    sync_threads<kWarps * 32>(1);
  }

  __device__ uint32_t take() { return kHasWeights ? ring_.take_full() : ring_.take(); }

  // Two neighbouring features a thread: of gate and up, whose tiles take turns, or as they are.
  template <bool kIsGateUp>
  __device__ void finish_pairs(Words* rows, int tiles) {
    const int pairs = tiles * 4, row = thread_ / pairs, i = thread_ % pairs;
    if (row >= p_.rows) return;
    float squares = 0, low[2] = {}, high[2] = {};
    const int column = kIsGateUp ? i / 4 * 16 + i % 4 * 2 : i * 2;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float* sums = &shared_.sums[turn_][warp][row][column];
      squares += shared_.squares[turn_][warp][row];
      for (int e = 0; e < 2; ++e) low[e] += sums[e];
      for (int e = 0; e < 2 && kIsGateUp; ++e) high[e] += sums[8 + e];
    }
    const float scale = rsqrtf(squares / kHidden + kEps);
    if constexpr (kIsGateUp) {
      for (int e = 0; e < 2; ++e) {
        low[e] = gate_and_mul<Activation::kSilu>(round_to_bfloat16(low[e] * scale),
                                                 round_to_bfloat16(high[e] * scale));
      }
      hand_over(&rows[row].mlp[blockIdx.x][i], pack_bfloat16(low[0], low[1]));
    } else {
      hand_over(&rows[row].qkv[blockIdx.x][i], pack_bfloat16(low[0] * scale, low[1] * scale));
    }
  }

  // Of this block's words of a layer, a thread 4.
  __device__ void clear_next(int layer) const {
    const int row = thread_ / 11, i = thread_ % 11, block = static_cast<int>(blockIdx.x);
    if (row >= p_.rows) return;
    for (int copy = 0; copy < p_.copies; ++copy) {
      Words& words = (*p_.next)[layer][copy][row];
      store_words(i < 4   ? words.residual[i / 2][block] + i % 2 * 4
                  : i < 7 ? words.mlp[block] + (i - 4) * 4
                          : words.qkv[block] + (i - 7) * 4,
                  kHoles);
    }
  }

  const Params& p_;
  Shared& shared_;
  Ring ring_;
  const int thread_ = threadIdx.x, lane_ = thread_ % 32, warp_ = thread_ / 32;
  const int row_ = min(lane_ / 4, p_.rows - 1);  // whose elements the lane holds
  const int first_ =
      warp_ * kUnits * 32 + lane_ % 4 * 8;  // of a slot's elements, and every 32nd from there
  const int copy_ = static_cast<int>(blockIdx.x) % p_.copies;
  int turn_ = 0;
};

template <Mode kMode>
__global__ void __maxnreg__(216) loop_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (kMode == Mode::kRowsOnly) {
    for (size_t i = thread; i < sizeof(Shared) / 4; i += kThreads)
      reinterpret_cast<uint32_t*>(memory)[i] = 0;
    __syncthreads();
  }
  if (thread == 0) {
    shared.waits = false;
    shared.ring.barriers.init(kWarps);
    publish_barriers();
  }
  __syncthreads();
  if (thread >= kWarps * 32) {
    Filler filler(p, shared);
    for (int i = 0; i < kLayers && kMode != Mode::kRowsOnly; ++i) {
      const Layer& layer = p.layers[i];
      filler.stream(layer.o, block * 8, 1, kHeads);
      filler.stream(layer.gate_up, block * kGateTiles * 8, kGateTiles, kHidden, kWidth);
      filler.stream(layer.down, block * 8, 1, kWidth);
      filler.stream(layer.qkv, block * kQkvTiles * 8, kQkvTiles, kHidden);
    }
  } else if constexpr (kMode == Mode::kStreamOnly) {
    Ring ring(shared.ring);
    for (int i = 0; i < kLayers * (5 + kGateTiles * 2 + kQkvTiles); ++i) {
      ring.take_full();
      ring.give_back(1);
    }
  } else {
    Warp<kMode == Mode::kAll>(p, shared).run();
  }
#endif
}

// One element a thread: out = x W^T rounded, times the scale of the rows' norm where there is one.
enum class Plain { kAdd, kPair, kStore };
__global__ void plain_kernel(float* out, const float* x, const float* norm, const Bf16* w, int k,
                             int width, Plain what) {
  const int feature = blockIdx.x * 64 + threadIdx.x, row = blockIdx.y;
  x += row * (norm != nullptr ? kHidden : kQkv);
  float squares = 0;
  for (int i = 0; i < kHidden && norm != nullptr; ++i) squares += x[i] * x[i];
  const float scale = norm != nullptr ? rsqrtf(squares / kHidden + kEps) : 1;
  const auto dot = [&](int of) {
    float sum = 0;
    for (int i = 0; i < k; ++i) {
      sum += load(w + int64_t{of} * k + i) *
             (norm != nullptr ? round_to_bfloat16(x[i] * norm[i]) : x[i]);
    }
    return round_to_bfloat16(sum * scale);
  };
  const float y = dot(feature);
  if (what == Plain::kAdd) out[row * kHidden + feature] += y;
  if (what == Plain::kStore) out[row * kQkv + feature] = y;
  if (what == Plain::kPair) {
    out[row * kQkv + feature] =
        round_to_bfloat16(gate_and_mul<Activation::kSilu>(y, dot(width + feature)));
  }
}

// Of the blocks' lines, `count` numbers each.
template <typename T>
std::vector<float> lines(const uint32_t (*p)[32], int count) {
  std::vector<T> values(kBlocks * count);
  NANOVLLM_CUDA_CHECK(cudaMemcpy2D(values.data(), count * sizeof(T), p, sizeof(*p),
                                   count * sizeof(T), kBlocks, cudaMemcpyDeviceToHost));
  return std::vector<float>(values.begin(), values.end());
}
class Loop {
 public:
  Loop() {
    for (Layer& layer : p_.layers) {
      const auto matrix = [](int64_t n, int64_t k) { return random<Bf16>(n * k, 0, 0.03f); };
      layer = {matrix(kHidden, kHeads),         matrix(2 * kWidth, kHidden),
               matrix(kHidden, kWidth),         matrix(kQkv, kHidden),
               random<float>(kHidden, 1, 0.2f), random<float>(kHidden, 1, 0.2f)};
    }
    p_.residual = residual_;
    p_.first = first_;
    NANOVLLM_CUDA_CHECK(cudaMemset(steps_, 0xff, 2 * sizeof(Step)));
    for (const auto kernel : kKernels) {
      NANOVLLM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               sizeof(Shared)));
    }
    // The first layer's attention, of rows as they lie in Words, and as plain numbers.
    NANOVLLM_CUDA_CHECK(cudaMemset(first_, 0, kMaxRows * sizeof(Words)));
    const auto* numbers = random<Bf16>(kMaxRows * kQkv, 0, 1);
    constexpr int kLine = 32 * 4, kOwnBytes = kQkv / kBlocks * 2;
    for (int row = 0; row < kMaxRows; ++row) {
      NANOVLLM_CUDA_CHECK(cudaMemcpy2D(first_[row].qkv, kLine, numbers + row * kQkv, kOwnBytes,
                                       kOwnBytes, kBlocks, cudaMemcpyDeviceToDevice));
    }
    const std::vector<float> attention = to_host<Bf16>(numbers, kMaxRows * kQkv);
    NANOVLLM_CUDA_CHECK(
        cudaMemcpy(attention_, attention.data(), attention.size() * 4, cudaMemcpyHostToDevice));
  }
  const char* name() const { return device_.name; }

  // Microseconds of a launch.
  double run(Mode mode, int rows, int window, int calm_window, int copies) {
    Params p = p_;
    p.rows = rows;
    p.window = window;
    p.calm_window = calm_window;
    p.copies = copies;
    p.words = &steps_[turn_];
    p.next = &steps_[turn_ ^= 1];
    void* arguments[] = {&p};
    const auto kernel = reinterpret_cast<const void*>(kKernels[static_cast<int>(mode)]);
    const double time = timer_.time([&] {
      NANOVLLM_CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, kBlocks, kThreads, arguments,
                                                      sizeof(Shared), nullptr));
    });
    NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
    return time;
  }
  // Before a launch whose words the one before has not emptied.
  void reset() { NANOVLLM_CUDA_CHECK(cudaMemset(steps_, 0xff, 2 * sizeof(Step))); }

  // The relative error of the last residual stream and of what follows it.
  double error(int rows) {
    auto *x = allocate<float>(rows * kHidden), *y = allocate<float>(rows * kQkv),
         *mlp = allocate<float>(rows * kQkv);
    NANOVLLM_CUDA_CHECK(cudaMemcpy(x, residual_, rows * kHidden * 4, cudaMemcpyDeviceToDevice));
    NANOVLLM_CUDA_CHECK(cudaMemcpy(y, attention_, rows * kQkv * 4, cudaMemcpyDeviceToDevice));
    for (const Layer& l : p_.layers) {
      plain_kernel<<<dim3(kHidden / 64, rows), 64>>>(x, y, nullptr, l.o, kHeads, 0, Plain::kAdd);
      plain_kernel<<<dim3(kWidth / 64, rows), 64>>>(mlp, x, l.norm, l.gate_up, kHidden, kWidth,
                                                    Plain::kPair);
      plain_kernel<<<dim3(kHidden / 64, rows), 64>>>(x, mlp, nullptr, l.down, kWidth, 0,
                                                     Plain::kAdd);
      plain_kernel<<<dim3(kQkv / 64, rows), 64>>>(y, x, l.next_norm, l.qkv, kHidden, 0,
                                                  Plain::kStore);
    }
    const std::vector<float> want_x = to_host<float>(x, rows * kHidden),
                             want_y = to_host<float>(y, rows * kQkv);
    reset();
    const Words* last = steps_[turn_][kLayers - 1][kMaxCopies - 1];
    run(Mode::kAll, rows, 4, 2, kMaxCopies);
    std::vector<float> got_x, got_y;
    for (int row = 0; row < rows; ++row) {
      const std::vector<float> residual = lines<float>(last[row].residual[1], 8),
                               qkv = lines<Bf16>(last[row].qkv, kQkv / kBlocks);
      got_x.insert(got_x.end(), residual.begin(), residual.end());
      got_y.insert(got_y.end(), qkv.begin(), qkv.end());
    }
    for (float* each : {x, y, mlp}) cudaFree(each);
    return std::max(relative_error(got_x, want_x), relative_error(got_y, want_y));
  }

  // Today's launches, one a layer, in a graph.
  cudaGraphExec_t capture_today(const LayerTailKernel& kernel, int rows) {
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (const Layer& l : p_.layers) {
      const auto product = [&](int n, int k, const Bf16* w, const void* x, const float* norm,
                               void* out) {
        SkinnyProduct p;
        p.rows = rows;
        p.out_features = n;
        p.in_features = k;
        p.weight = w;
        p.x = x;
        p.out = out;
        if (norm != nullptr) p.norm = {norm, kEps};
        return p;
      };
      std::array products = {
          product(kHidden, kHeads, l.o, today_qkv_, nullptr, today_residual_),
          product(2 * kWidth, kHidden, l.gate_up, today_residual_, l.norm, today_mlp_),
          product(kHidden, kWidth, l.down, today_mlp_, nullptr, today_residual_),
          product(kQkv, kHidden, l.qkv, today_residual_, l.next_norm, today_qkv_)};
      products[0].epilogue = products[2].epilogue = Epilogue::kAdd;
      products[1].epilogue = Epilogue::kActAndMul;
      kernel.launch(stream_, products);
    }
    NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    return instance;
  }
  double run_today(cudaGraphExec_t graph) {
    return timer_.time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(graph, nullptr)); });
  }
  const cudaDeviceProp& device() const { return device_; }

 private:
  static constexpr std::array kKernels = {loop_kernel<Mode::kAll>, loop_kernel<Mode::kStreamOnly>,
                                          loop_kernel<Mode::kRowsOnly>};

  const cudaDeviceProp device_ = the_device();
  cudaStream_t stream_;
  CudaTimer timer_{nullptr};
  Params p_ = {};
  Step* steps_ = allocate<Step>(2);
  int turn_ = 0;
  float* residual_ = random<float>(kMaxRows * kHidden, 0, 1);
  float* attention_ = allocate<float>(kMaxRows * kQkv);
  Words* first_ = allocate<Words>(kMaxRows);
  float* today_residual_ = random<float>(kMaxRows * kHidden, 0, 1);
  Bf16* today_mlp_ = random<Bf16>(kMaxRows * kWidth, 0, 1);
  Bf16* today_qkv_ = random<Bf16>(kMaxRows * kQkv, 0, 1);
};

int run() {
  Loop loop;
  int failures = 0;
  const auto today = LayerTailKernel::make(0, loop.device());
  std::printf(
      "%s, us a layer of %.1f MB, medians of 11 rounds; in brackets TB/s, and ratios in the same "
      "round to today's\n",
      loop.name(), kLayerBytes * 1e-6);
  for (const int rows : {1, 2, 4, 8}) {
    const double error = loop.error(rows);
    const bool wrong = !(error < 2e-2);
    failures += wrong;
    std::printf("%d rows, relative error %.1e%s\n", rows, error, wrong ? " WRONG" : "");
    const cudaGraphExec_t graph = loop.capture_today(*today, rows);
    for (const int copies : {1, kMaxCopies}) {
      constexpr int kAll = 2 * kSlots;
      for (const auto& [window, calm] : {std::pair(2, 2),
                                         {3, 3},
                                         {4, 4},
                                         {4, 2},
                                         {5, 5},
                                         {6, 6},
                                         {6, 2},
                                         {8, 2},
                                         {12, 2},
                                         {kAll, 2},
                                         {kAll, kAll}}) {
        std::vector<double> stream, alone, all, old, ratios;
        loop.reset();
        for (int round = 0; round < 12; ++round) {
          loop.run_today(graph);
          old.push_back(loop.run_today(graph) / kLayers);
          stream.push_back(loop.run(Mode::kStreamOnly, rows, window, calm, copies) / kLayers);
          loop.reset();
          alone.push_back(loop.run(Mode::kRowsOnly, rows, window, calm, copies) / kLayers);
          loop.run(Mode::kAll, rows, window, calm, copies);  // leaves words where steps do
          all.push_back(loop.run(Mode::kAll, rows, window, calm, copies) / kLayers);
          ratios.push_back(all.back() / old.back());
          if (round > 0) continue;
          for (auto* each : {&stream, &alone, &all, &old, &ratios}) each->clear();
        }
        std::printf(
            "  %d copies, %3d KiB under way, %3d while waiting: today %.2f, stream alone %.2f "
            "(%.2f), rows alone %.2f, both %.2f (%.2f, %.3f)\n",
            copies, window * 8, calm * 8, median(old), median(stream),
            kLayerBytes / median(stream) * 1e-6, median(alone), median(all),
            kLayerBytes / median(all) * 1e-6, median(ratios));
      }
    }
  }
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
