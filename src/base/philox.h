// Philox4x32-10, the counter-based random number generator of Salmon, Moraes, Dror and Shaw:
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A number is a pure function of key and
// counter, so a token's luck depends on nothing but its request's seed and its position.
#pragma once

#include <array>
#include <cstdint>

namespace nanovllm {

constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// Uniform in [0, 1) with all 53 bits: a vocabulary of 150,000 tokens has probabilities far below
// the 2^-24 that a float could resolve.
constexpr double philox_uniform(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> r =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{r[1]} << 32) | r[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace nanovllm
