// The instruction sets that kernels are compiled for. Plain declarations only: the files that are
// compiled once for each set include it.
#pragma once

namespace nanovllm {

// Each includes all before it. kAvx512Bf16 has VBMI too, as all processors with bfloat16 but one.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// f.operator()<S>() for the best set S, up to `isa`, that files named *_each_isa.cc are compiled
// for (cmake/isa.cmake).
template <typename F>
auto with_isa(Isa isa, F f) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Bf16) return f.template operator()<Isa::kAvx512Bf16>();
  if (isa >= Isa::kAvx512) return f.template operator()<Isa::kAvx512>();
  if (isa >= Isa::kAvx2) return f.template operator()<Isa::kAvx2>();
#endif
  static_cast<void>(isa);
  return f.template operator()<Isa::kPortable>();
}

}  // namespace nanovllm
