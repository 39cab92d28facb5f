#include "backend/cpu/rows.h"

#include "base/check.h"

namespace nanovllm {

RowKernels row_kernels(Isa isa, DType act) {
  NANOVLLM_CHECK(act == DType::kBFloat16 || act == DType::kFloat32);
  const bool bfloat16 = act == DType::kBFloat16;
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Bf16) return row_kernels_avx512bf16(bfloat16);
  if (isa >= Isa::kAvx512) return row_kernels_avx512(bfloat16);
  if (isa >= Isa::kAvx2) return row_kernels_avx2(bfloat16);
#endif
  static_cast<void>(isa);
  return row_kernels_portable(bfloat16);
}

}  // namespace nanovllm
