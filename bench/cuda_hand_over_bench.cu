// How long the blocks of one launch take to hand each other 1,024 words, a block a multiprocessor,
// each of which needs all words before it writes its own 8 of the next: idle, and beside a stream
// of weights into shared memory. By the holes of hand_over.cuh and by other ways; see Way.
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/hand_over.cuh"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

enum class Way {
  kHoles,    // as load_written(): all lanes load again until all words are there
  kMissing,  // lanes load again what they miss
  kInTurn,   // likewise, four sets of words, emptied two exchanges after they were read
  kCopies,   // likewise, eight copies, for readers in turn
  kLines,    // likewise, the words of each writer in a line of their own
  kQuads,    // 128 bits: three words and the exchange's number
  kFlags,    // a flag of each writer, released and acquired
  kCounter,  // one counter, likewise
};
constexpr std::array kNames = {"holes",
                               "holes, the missing",
                               "  4 sets in turn",
                               "  8 copies",
                               "  a line each",
                               "3 words and number",
                               "flags",
                               "counter"};
constexpr int kWords = 1024, kOwn = 8, kOwners = kWords / kOwn, kThreads = kWords / 4;
constexpr int kExchanges = 1000, kSets = 4, kCopies = 8, kSetWords = kWords * kCopies;
constexpr int kSlotBytes = 4 << 10, kMaxSlots = 48;
constexpr int64_t kWeightBytes = int64_t{1} << 30;

// The word i of an exchange, from the sum of all words of the one before; never a hole.
__host__ __device__ uint32_t word_of(uint32_t exchange, uint32_t total, int i) {
  return (total * 3 + static_cast<uint32_t>(i) * 7919 + exchange) & 0x7fffffff;
}

// Until all lanes have found what they wait for; those that have look again only if kAll.
template <bool kAll = false, typename Find>
__device__ void poll(const Find& find) {
  bool found = false;
  for (int tries = 0; !__all_sync(0xffffffffu, found); ++tries) {
    if (kAll || !found) found = find();
    if (tries == 1 << 22) __trap();
  }
}
__device__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
__device__ uint4 load_128(const uint32_t* p) {
  uint64_t low, high;
  asm volatile("{\n.reg .b128 x;\nld.relaxed.gpu.global.b128 x, [%2];\nmov.b128 {%0, %1}, x;\n}"
               : "=l"(low), "=l"(high)
               : "l"(p)
               : "memory");
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}
__device__ void store_128(uint32_t* p, uint4 x) {
  asm volatile(
      "{\n.reg .b128 x;\nmov.b128 x, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], x;\n}" ::"l"(p),
      "l"(x.x | uint64_t{x.y} << 32), "l"(x.z | uint64_t{x.w} << 32)
      : "memory");
}

template <Way kWay>
__device__ uint32_t* set_of(uint32_t* memory, int exchange) {
  if (kWay == Way::kHoles || kWay == Way::kMissing) return memory + exchange * kWords;
  return memory + exchange % kSets * kSetWords;
}

// The block's words, by its first warp.
template <Way kWay>
__device__ void publish(uint32_t* memory, uint32_t* flags, int exchange, uint32_t total) {
  uint32_t* set = set_of<kWay>(memory, exchange);
  const int lane = threadIdx.x, block = blockIdx.x;
  const auto word = [&](int i) {
    return i < kOwn ? word_of(exchange, total, block * kOwn + i) : 0;
  };
  const auto number = static_cast<uint32_t>(exchange);
  if (kWay == Way::kQuads) {
    const int i = lane * 3;
    if (lane < 3)
      store_128(set + (block * 3 + lane) * 4, {word(i), word(i + 1), word(i + 2), number});
  } else if (lane < (kWay == Way::kCopies ? 2 * kCopies : 2)) {
    const int i = lane % 2 * 4;
    const int at = lane / 2 * kWords + block * (kWay == Way::kLines ? 32 : kOwn) + i;
    store_words(set + at, {word(i), word(i + 1), word(i + 2), word(i + 3)});
    if ((kWay == Way::kInTurn || kWay == Way::kCopies || kWay == Way::kLines) && exchange > 1) {
      store_words(set_of<kWay>(memory, exchange - 2) + at, kHoles);
    }
  }
  if (kWay == Way::kFlags || kWay == Way::kCounter) {
    __syncwarp();
    if (lane > 0) return;
    if (kWay == Way::kFlags) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + block), "r"(number + 1)
                   : "memory");
    } else {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flags) : "memory");
    }
  }
}

// The sum of a thread's part of all words.
template <Way kWay>
__device__ uint32_t collect(uint32_t* memory, const uint32_t* flags, int exchange) {
  const uint32_t* set = set_of<kWay>(memory, exchange);
  const int thread = threadIdx.x;
  const auto number = static_cast<uint32_t>(exchange);
  uint4 x;
  if (kWay == Way::kQuads) {
    uint4 y = {0, 0, 0, number};
    poll([&] {
      x = load_128(set + thread * 4);
      if (thread < kOwners * 3 - kThreads) y = load_128(set + (kThreads + thread) * 4);
      return x.w == number && y.w == number;
    });
    return x.x + x.y + x.z + y.x + y.y + y.z;
  }
  if (kWay == Way::kFlags) poll([&] { return load_acquire(flags + thread / 2) > number; });
  if (kWay == Way::kCounter) {
    poll([&] { return thread % 32 > 0 || load_acquire(flags) >= (number + 1) * kOwners; });
  }
  int at = thread * 4;
  if (kWay == Way::kCopies) at += static_cast<int>(blockIdx.x) % kCopies * kWords;
  if (kWay == Way::kLines) at = thread / 2 * 32 + thread % 2 * 4;
  poll<kWay == Way::kHoles>([&] {
    x = load_words(set + at);
    return kWay == Way::kFlags || kWay == Way::kCounter || largest_of(x) != kHole;
  });
  return x.x + x.y + x.z + x.w;
}

// Copies of 4 KiB, `slots` of them always under way, until `over`, by one lane.
__device__ void stream(const uint8_t* weights, int slots, char* shared, Barrier* full,
                       const volatile bool* over, unsigned long long* bytes) {
  const int64_t chunks = kWeightBytes / kSlotBytes;
  int64_t chunk = blockIdx.x;
  int copies = 0;
  const auto start = [&](int slot) {
    full[slot].expect(kSlotBytes);
    copy_bulk(shared_address(shared) + slot * kSlotBytes, weights + chunk % chunks * kSlotBytes,
              kSlotBytes, full[slot], kEvictFirst);
    chunk += gridDim.x;
    ++copies;
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
  atomicAdd(bytes, static_cast<unsigned long long>(copies) * kSlotBytes);
}

struct Buffers {
  uint32_t *memory, *flags, *totals;
  const uint8_t* weights;
  unsigned long long* bytes;
};

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
    if (threadIdx.x == kThreads && slots > 0)
      stream(p.weights, slots, dynamic, full, &over, p.bytes);
    return;
  }
  uint32_t total = 0;
  for (int i = 0; i < kExchanges; ++i) {
    if (blockIdx.x < kOwners && threadIdx.x < 32) publish<kWay>(p.memory, p.flags, i, total);
    const uint32_t sum = __reduce_add_sync(0xffffffffu, collect<kWay>(p.memory, p.flags, i));
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
  constexpr int64_t kMemoryBytes = int64_t{kExchanges} * kWords * 4;
  const Buffers p = {allocate<uint32_t>(kMemoryBytes / 4), allocate<uint32_t>(kOwners),
                     allocate<uint32_t>(blocks), allocate<uint8_t>(kWeightBytes),
                     allocate<unsigned long long>(1)};
  constexpr std::array kKernels = {exchange_kernel<Way::kHoles>,  exchange_kernel<Way::kMissing>,
                                   exchange_kernel<Way::kInTurn>, exchange_kernel<Way::kCopies>,
                                   exchange_kernel<Way::kLines>,  exchange_kernel<Way::kQuads>,
                                   exchange_kernel<Way::kFlags>,  exchange_kernel<Way::kCounter>};
  const uint32_t expected = expected_total();
  int failures = 0;
  CudaTimer timer(nullptr);
  std::printf(
      "%s, %d blocks, medians of 7 rounds: us an exchange, its ratio to the first way's, TB/s of "
      "weights\n",
      device.name, blocks);
  for (int slots : {0, 2, 4, 6, 8, 12, 16, kMaxSlots}) {
    std::vector<double> times[kNames.size()], ratios[kNames.size()], rates[kNames.size()];
    for (int round = 0; round < 8; ++round) {
      for (size_t way = 0; way < kNames.size(); ++way) {
        const bool holes = way < 5;
        NANOVLLM_CUDA_CHECK(cudaMemset(p.memory, holes ? 0xff : 0x80, kMemoryBytes));
        NANOVLLM_CUDA_CHECK(cudaMemset(p.flags, 0, kOwners * 4));
        NANOVLLM_CUDA_CHECK(cudaMemset(p.bytes, 0, 8));
        const auto kernel = reinterpret_cast<const void*>(kKernels[way]);
        NANOVLLM_CUDA_CHECK(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSlots * kSlotBytes));
        Buffers buffers = p;
        void* arguments[] = {&buffers, &slots};
        const double time = timer.time([&] {
          NANOVLLM_CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, blocks, kThreads + 32, arguments,
                                                          kMaxSlots * kSlotBytes, nullptr));
        });
        std::vector<uint32_t> totals(blocks);
        unsigned long long bytes;
        NANOVLLM_CUDA_CHECK(
            cudaMemcpy(totals.data(), p.totals, blocks * 4, cudaMemcpyDeviceToHost));
        NANOVLLM_CUDA_CHECK(cudaMemcpy(&bytes, p.bytes, 8, cudaMemcpyDeviceToHost));
        failures += std::ranges::count_if(totals, [&](uint32_t x) { return x != expected; }) > 0;
        if (round == 0) continue;
        times[way].push_back(time / kExchanges);
        ratios[way].push_back(times[way].back() / times[0].back());
        rates[way].push_back(bytes / time * 1e-6);
      }
    }
    std::printf("%d KiB of weights under way\n", slots * kSlotBytes >> 10);
    for (size_t way = 0; way < kNames.size(); ++way) {
      std::printf("  %-20s %6.3f us %6.3f %6.2f TB/s\n", kNames[way], median(times[way]),
                  median(ratios[way]), median(rates[way]));
    }
  }
  std::printf("%d launches with wrong sums\n", failures);
  return failures > 0;
}

}  // namespace
}  // namespace nanovllm::cuda

int main() { return nanovllm::cuda::run(); }
