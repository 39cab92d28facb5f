#include "backend/cpu/cpu_features.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "backend/cpu/linear/weight_streams.h"
#include "base/check.h"

#if defined(__x86_64__)
#  include <cpuid.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#endif

namespace nanovllm {
namespace {

constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
static_assert(std::size(kIsaNames) == static_cast<size_t>(Isa::kAmx) + 1);

#if defined(__x86_64__)

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool has(uint32_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

// Register state that the operating system saves: bit 1 SSE, 2 AVX, 5-7 AVX-512, 17-18 AMX tiles.
uint32_t saved_register_state() {
  if (!has(cpuid(1, 0).ecx, {27})) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux grants tiles to processes that ask (ARCH_REQ_XCOMP_PERM for XTILEDATA), threads included.
bool request_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

Isa detect() {
  const CpuidLeaf leaf1 = cpuid(1, 0);
  const CpuidLeaf leaf7 = cpuid(7, 0);
  const uint32_t state = saved_register_state();
  if (!has(state, {1, 2}) || !has(leaf1.ecx, {12, 28, 29}) || !has(leaf7.ebx, {5})) {
    return Isa::kPortable;  // FMA, AVX, F16C; AVX2
  }
  if (!has(state, {5, 6, 7}) || !has(leaf7.ebx, {16, 17, 30, 31})) {
    return Isa::kAvx2;  // AVX-512 F, DQ, BW, VL
  }
  if (!has(cpuid(7, 1).eax, {5}) || !has(leaf7.ecx, {1})) {
    return Isa::kAvx512;  // AVX-512 BF16, VBMI
  }
  if (!has(state, {17, 18}) || !has(leaf7.edx, {22, 24}) || !request_tiles()) {
    return Isa::kAvx512Bf16;  // AMX-BF16, AMX-TILE
  }
  return Isa::kAmx;
}

WeightStreams find_weight_streams() {
  const CpuidLeaf leaf = cpuid(0, 0);
  const auto is = [&](const char(&name)[13]) {
    const uint32_t words[] = {leaf.ebx, leaf.edx, leaf.ecx};
    return std::memcmp(words, name, sizeof words) == 0;
  };
  if (!is("AuthenticAMD") && !is("HygonGenuine")) return WeightStreams::kSeveral;
  const uint32_t version = cpuid(1, 0).eax;
  const uint32_t family = (version >> 8 & 15) + (version >> 20 & 255);
  return family > 25 ? WeightStreams::kOne : WeightStreams::kOneForeseen;  // Zen 4's, Zen 5's is 26
}

#else

Isa detect() { return Isa::kPortable; }

WeightStreams find_weight_streams() { return WeightStreams::kSeveral; }

#endif

}  // namespace

const char* to_string(Isa isa) { return kIsaNames[static_cast<size_t>(isa)]; }

Isa parse_isa(const std::string& name) {
  const auto found = std::find(std::begin(kIsaNames), std::end(kIsaNames), name);
  if (found != std::end(kIsaNames)) return static_cast<Isa>(found - std::begin(kIsaNames));
  throw_error(ErrorCode::kInvalidArgument,
              "NANOVLLM_CPU_ISA is '{}', but must be portable, avx2, avx512, avx512_bf16 or amx",
              name);
}

Isa detected_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa default_isa() {
  const char* name = std::getenv("NANOVLLM_CPU_ISA");
  if (name == nullptr || *name == '\0') return detected_isa();
  return std::min(parse_isa(name), detected_isa());
}

WeightStreams weight_streams() {
  static const WeightStreams streams = find_weight_streams();
  return streams;
}

}  // namespace nanovllm
