// How long the blocks of one launch take to hand each other 1,024 words, a block a multiprocessor,
// each of which needs all words before it writes its own 8 of the next: idle, and beside a stream
// of weights into shared memory. Fails where a block has a wrong sum of words.
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "backend/cuda/device/bulk_copy.cuh"
#include "backend/cuda/device/hand_over.cuh"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

enum class Way {
  kHoles,  // those of hand_over.cuh, as the layer tail's
  kLines,  // the words of each block in a line of their own, of which lanes ask again what they
           // miss
  kFlags,  // a flag of each block, released and acquired
};
constexpr std::array kNames = {"holes", "a line each", "flags"};
constexpr int kWords = 1024, kOwn = 8, kOwners = kWords / kOwn, kThreads = kWords / 4;
constexpr int kExchanges = 1000;
constexpr int kSlotBytes = 4 << 10, kMaxSlots = 48;
constexpr int64_t kWeightBytes = int64_t{1} << 30;

// The word i of an exchange, from the sum of all words of the one before; never a hole.
__host__ __device__ uint32_t word_of(uint32_t exchange, uint32_t total, int i) {
  return (total * 3 + static_cast<uint32_t>(i) * 7919 + exchange) & 0x7fffffff;
}

struct Buffers {
  uint32_t *memory, *flags, *totals;
  const uint8_t* weights;
  unsigned long long* bytes;  // of weights
};

// Of words 4 `quad` and on. Lines are of four sets in turn, emptied two exchanges after they were
// read; other ways have a set for each exchange.
template <Way kWay>
__device__ uint32_t* place(uint32_t* memory, int exchange, int quad) {
  constexpr int kSets = 4, kLine = 32;
  if (kWay != Way::kLines) return memory + exchange * kWords + quad * 4;
  return memory + (exchange % kSets * kOwners + quad / 2) * kLine + quad % 2 * 4;
}

// The block's words, by its first warp.
template <Way kWay>
__device__ void publish(const Buffers& p, int exchange, uint32_t total) {
  const int lane = threadIdx.x;
  if (lane < 2) {
    const int quad = blockIdx.x * 2 + lane;
    const auto word = [&](int i) { return word_of(exchange, total, quad * 4 + i); };
    store_words(place<kWay>(p.memory, exchange, quad), {word(0), word(1), word(2), word(3)});
    if (kWay == Way::kLines && exchange > 1) {
      store_words(place<kWay>(p.memory, exchange - 2, quad), kHoles);
    }
  }
  if (kWay == Way::kFlags) {
    __syncwarp();
    if (lane > 0) return;
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.flags + blockIdx.x),
                 "r"(exchange + 1)
                 : "memory");
  }
}

// The sum of a thread's part of all words.
template <Way kWay>
__device__ uint32_t collect(const Buffers& p, int exchange) {
  const uint32_t* source = place<kWay>(p.memory, exchange, threadIdx.x);
  uint4 x[1];
  bool found = false;
  if (kWay == Way::kHoles) load_written(x, false, [&](int) { return load_words(source); });
  while (kWay == Way::kLines && !__all_sync(0xffffffffu, found)) {
    if (!found) x[0] = load_words(source);
    found = largest_of(x[0]) != kHole;
  }
  while (kWay == Way::kFlags && !__all_sync(0xffffffffu, found)) {
    if (found) continue;
    int flag;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(flag)
                 : "l"(p.flags + threadIdx.x / 2)
                 : "memory");
    found = flag > exchange;
  }
  if (kWay == Way::kFlags) x[0] = load_words(source);
  return x[0].x + x[0].y + x[0].z + x[0].w;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Copies of 4 KiB, `slots` of them always under way, until `over`, by one lane.
__device__ void stream(const Buffers& p, int slots, char* shared, Barrier* full,
                       const volatile bool* over) {
  const int64_t chunks = kWeightBytes / kSlotBytes;
  int64_t chunk = blockIdx.x;
  const auto start = [&](int slot) {
    full[slot].expect(kSlotBytes);
    copy_bulk(shared_address(shared) + slot * kSlotBytes, p.weights + chunk % chunks * kSlotBytes,
              kSlotBytes, full[slot], kEvictFirst);
    chunk += gridDim.x;
  };
  for (int slot = 0; slot < slots; ++slot) start(slot);
  bool more = true;
  for (uint32_t parity = 0; more; parity ^= 1) {
    more = !*over;  // else waits for what is under way
    for (int slot = 0; slot < slots; ++slot) {
      full[slot].wait(parity);
      if (more) start(slot);
    }
  }
  atomicAdd(p.bytes, static_cast<unsigned long long>(chunk / gridDim.x) * kSlotBytes);
}
#endif

template <Way kWay>
__global__ void __launch_bounds__(kThreads + 32) exchange_kernel(Buffers p, int slots) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char dynamic[];
  __shared__ Barrier full[kMaxSlots];
  __shared__ uint32_t sums[2][kThreads / 32];
  __shared__ volatile bool over;
  if (threadIdx.x == 0) {
    over = false;
    for (Barrier& barrier : full) barrier.init(1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    if (threadIdx.x == kThreads && slots > 0) stream(p, slots, dynamic, full, &over);
    return;
  }
  uint32_t total = 0;
  for (int i = 0; i < kExchanges; ++i) {
    if (blockIdx.x < kOwners && threadIdx.x < 32) publish<kWay>(p, i, total);
    const uint32_t sum = __reduce_add_sync(0xffffffffu, collect<kWay>(p, i));
    if (threadIdx.x % 32 == 0) sums[i % 2][threadIdx.x / 32] = sum;
    sync_threads<kThreads>(1);
    total = 0;
    for (const uint32_t each : sums[i % 2]) total += each;
  }
  if (threadIdx.x > 0) return;
  over = true;
  p.totals[blockIdx.x] = total;
#endif
}

uint32_t expected_total() {
  uint32_t total = 0;
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    uint32_t next = 0;
    for (int i = 0; i < kWords; ++i) next += word_of(exchange, total, i);
    total = next;
  }
  return total;
}

int run() {
  const cudaDeviceProp device = the_device();
  const int blocks = device.multiProcessorCount;
  constexpr int kMemoryWords = kExchanges * kWords;
  Buffers p = {allocate<uint32_t>(kMemoryWords), allocate<uint32_t>(kOwners),
               allocate<uint32_t>(blocks), allocate<uint8_t>(kWeightBytes),
               allocate<unsigned long long>(1)};
  constexpr std::array kKernels = {exchange_kernel<Way::kHoles>, exchange_kernel<Way::kLines>,
                                   exchange_kernel<Way::kFlags>};
  const uint32_t expected = expected_total();
  int failures = 0;
  CudaTimer timer(nullptr);
  std::printf("%s, %d blocks, medians of 7 rounds: us an exchange, TB/s of weights\n", device.name,
              blocks);
  for (int slots : {0, 4, 8, kMaxSlots}) {
    std::array<std::vector<double>, kNames.size()> rates;
    const std::vector<Medians> medians = in_turns(7, kNames.size(), [&](int way) {
      NANOVLLM_CUDA_CHECK(cudaMemset(p.memory, 0xff, kMemoryWords * 4));
      NANOVLLM_CUDA_CHECK(cudaMemset(p.flags, 0, kOwners * 4));
      NANOVLLM_CUDA_CHECK(cudaMemset(p.bytes, 0, 8));
      const auto kernel = reinterpret_cast<const void*>(kKernels[way]);
      NANOVLLM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               kMaxSlots * kSlotBytes));
      void* arguments[] = {&p, &slots};
      const double time = timer.time([&] {
        NANOVLLM_CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, blocks, kThreads + 32, arguments,
                                                        kMaxSlots * kSlotBytes, nullptr));
      });
      unsigned long long bytes;
      std::vector<uint32_t> totals(blocks);
      NANOVLLM_CUDA_CHECK(cudaMemcpy(&bytes, p.bytes, 8, cudaMemcpyDeviceToHost));
      NANOVLLM_CUDA_CHECK(cudaMemcpy(totals.data(), p.totals, blocks * 4, cudaMemcpyDeviceToHost));
      failures += std::ranges::any_of(totals, [&](uint32_t x) { return x != expected; });
      rates[way].push_back(bytes / time * 1e-6);
      return time / kExchanges;
    });
    for (size_t way = 0; way < kNames.size(); ++way) {
      std::printf("%3d KiB under way, %-11s %6.3f us, %.2f TB/s\n", slots * kSlotBytes >> 10,
                  kNames[way], medians[way].time, median(rates[way]));
    }
  }
  std::printf("%d launches with wrong sums\n", failures);
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
