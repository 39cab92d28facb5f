#include "ceilings.h"

#if defined(__x86_64__)
#  include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace nanovllm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t read_portable(const char* p, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, p + i, 8);
    sum += word;
  }
  return sum;
}

#if defined(__x86_64__)
// In so many streams, prefetching far ahead or leaving that to the processor.
template <int streams, bool prefetch>
__attribute__((target("avx2"))) uint64_t read_avx2(const char* p, size_t bytes) {
  const size_t stride = bytes / streams;
  __m256i sum[streams] = {};
  for (size_t i = 0; i < stride; i += 64) {
    for (int s = 0; s < streams; ++s) {
      const char* q = p + static_cast<size_t>(s) * stride + i;
      if constexpr (prefetch) _mm_prefetch(q + 4096, _MM_HINT_T0);
      sum[s] = _mm256_add_epi64(sum[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(q)));
      sum[s] =
          _mm256_xor_si256(sum[s], _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 32)));
    }
  }
  uint64_t total = 0;
  for (const __m256i& s : sum) {
    total += static_cast<uint64_t>(_mm256_extract_epi64(s, 0) + _mm256_extract_epi64(s, 1));
  }
  return total;
}

// Chains enough to cover the latency of any core so far.
constexpr int kChains = 20;

__attribute__((target("avx512f,avx512bf16"))) float multiply_avx512bf16(int64_t rounds) {
  __m512 acc[kChains];
#  pragma GCC unroll 20
  for (__m512& chain : acc) chain = _mm512_setzero_ps();
  __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = a;
  for (int64_t i = 0; i < rounds; ++i) {
#  pragma GCC unroll 20
    for (__m512& chain : acc) {
      chain = _mm512_dpbf16_ps(chain, a, b);
      __asm__ volatile("" : "+v"(chain));  // or equal chains become one
    }
  }
  __m512 sum = acc[0];
#  pragma GCC unroll 20
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[c]);
  return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float multiply_avx512(int64_t rounds) {
  __m512 acc[kChains];
#  pragma GCC unroll 20
  for (__m512& chain : acc) chain = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1), b = a;
  for (int64_t i = 0; i < rounds; ++i) {
#  pragma GCC unroll 20
    for (__m512& chain : acc) {
      chain = _mm512_fmadd_ps(a, b, chain);
      __asm__ volatile("" : "+v"(chain));
    }
  }
  __m512 sum = acc[0];
#  pragma GCC unroll 20
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[c]);
  return _mm512_cvtss_f32(sum);
}

constexpr int kAvx2Chains = 12;

__attribute__((target("avx2,fma"))) float multiply_avx2(int64_t rounds) {
  __m256 acc[kAvx2Chains];
#  pragma GCC unroll 12
  for (__m256& chain : acc) chain = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1), b = a;
  for (int64_t i = 0; i < rounds; ++i) {
#  pragma GCC unroll 12
    for (__m256& chain : acc) {
      chain = _mm256_fmadd_ps(a, b, chain);
      __asm__ volatile("" : "+x"(chain));
    }
  }
  __m256 sum = acc[0];
#  pragma GCC unroll 12
  for (int c = 1; c < kAvx2Chains; ++c) sum = _mm256_add_ps(sum, acc[c]);
  return _mm256_cvtss_f32(sum);
}
#endif

constexpr size_t kReadBytes = size_t{512} << 20;

const char* memory_to_read(CpuBackend& cpu) {
  static const std::unique_ptr<Buffer> buffer = [&] {
    auto memory = cpu.allocate(kReadBytes);
    std::fill_n(static_cast<char*>(memory->data()), kReadBytes, char{1});
    return memory;
  }();
  return static_cast<const char*>(buffer->data());
}

using Read = uint64_t (*)(const char* p, size_t bytes);

// Which is the quickest depends on the processor.
std::vector<Read> ways_to_read() {
#if defined(__x86_64__)
  if (detected_isa() >= Isa::kAvx2) {
    return {&read_avx2<1, false>, &read_avx2<1, true>, &read_avx2<4, false>, &read_avx2<4, true>};
  }
#endif
  return {&read_portable};
}

// Bytes a second.
double time_read(CpuBackend& cpu, const char* data, size_t bytes, Read read) {
  constexpr size_t kTaskBytes = size_t{4} << 20;
  static std::atomic<uint64_t> sink{0};
  const auto start = Clock::now();
  cpu.pool().parallel_for(bytes / kTaskBytes, [&](int64_t task, int) {
    sink += read(data + static_cast<size_t>(task) * kTaskBytes, kTaskBytes);
  });
  return static_cast<double>(bytes) / seconds_since(start);
}

// That which most often wins a few passes right after one another.
Read best_read(CpuBackend& cpu) {
  const std::vector<Read> ways = ways_to_read();
  std::vector<int> wins(ways.size());
  for (int pass = 0; pass < 15; ++pass) {
    std::vector<double> rates(ways.size());
    std::ranges::transform(ways, rates.begin(), [&](Read way) {
      return time_read(cpu, memory_to_read(cpu), kReadBytes / 4, way);
    });
    ++wins[static_cast<size_t>(std::ranges::max_element(rates) - rates.begin())];
  }
  return ways[static_cast<size_t>(std::ranges::max_element(wins) - wins.begin())];
}

}  // namespace

double read_bandwidth(CpuBackend& cpu) {
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    for (const Read way : ways_to_read()) {
      best = std::max(best, time_read(cpu, memory_to_read(cpu), kReadBytes, way));
    }
  }
  return best;
}

double read_once(CpuBackend& cpu) {
  constexpr size_t kPartBytes = kReadBytes / 4;
  static const Read read = best_read(cpu);
  static size_t next = 0;
  const char* part = memory_to_read(cpu) + next++ % 4 * kPartBytes;
  return time_read(cpu, part, kPartBytes, read);
}

double peak_flops(CpuBackend& cpu, DType weights) {
#if defined(__x86_64__)
  float (*multiply)(int64_t) = nullptr;
  double flops_per_round = 0;
  if (cpu.isa() == Isa::kAvx512Bf16 && weights == DType::kBFloat16) {
    multiply = &multiply_avx512bf16;
    flops_per_round = kChains * 64;
  } else if (cpu.isa() >= Isa::kAvx512 &&
             !(cpu.isa() == Isa::kAmx && weights == DType::kBFloat16)) {
    multiply = &multiply_avx512;
    flops_per_round = kChains * 32;
  } else if (cpu.isa() == Isa::kAvx2) {
    multiply = &multiply_avx2;
    flops_per_round = kAvx2Chains * 16;
  }
  if (multiply == nullptr) return 0;
  constexpr int64_t kRounds = 1'000'000;
  const int threads = cpu.pool().num_threads();
  static std::atomic<float> sink{0};
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = Clock::now();
    cpu.pool().parallel_for(threads, [&](int64_t, int) { sink = multiply(kRounds); });
    best = std::max(best, threads * kRounds * flops_per_round / seconds_since(start));
  }
  return best;
#else
  (void)cpu;
  (void)weights;
  return 0;
#endif
}

}  // namespace nanovllm
