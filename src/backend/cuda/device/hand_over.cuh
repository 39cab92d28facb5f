// How blocks of one launch hand words to each other: through device memory whose words say by
// themselves whether they have been written. A word that has not is a hole, a NaN that no
// arithmetic gives; a reader loads what it wants and loads again what still is a hole. So a
// hand-over takes one store and one load, and no fence, flag or counter.
#pragma once

#include <cstdint>

namespace nanovllm::cuda {

constexpr uint32_t kHole = 0xffffffff;
constexpr uint4 kHoles = {kHole, kHole, kHole, kHole};

__device__ inline uint4 load_words(const uint32_t* p) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p)
               : "memory");
  return x;
}
__device__ inline void store_word(uint32_t* p, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
__device__ inline void store_two_words(uint32_t* p, uint2 x) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(x.x), "r"(x.y)
               : "memory");
}
__device__ inline void store_words(uint32_t* p, uint4 x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ inline uint32_t largest_of(const uint4& x) { return max(max(x.x, x.y), max(x.z, x.w)); }

// words[i] = load(i), for all lanes of the warp, until none has a hole. With `probes`, the first
// one has to be there before the others are asked for: many rows would keep the memory busy.
template <int n, typename Load>
__device__ void load_written(uint4 (&words)[n], bool probes, Load&& load) {
  uint32_t largest;
  if (probes) {
    do {
      largest = largest_of(load(0));
    } while (__any_sync(0xffffffffu, largest == kHole));
  }
  do {
#pragma unroll
    for (int i = 0; i < n; ++i) words[i] = load(i);
    largest = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) largest = max(largest, largest_of(words[i]));
  } while (__any_sync(0xffffffffu, largest == kHole));
}

}  // namespace nanovllm::cuda
