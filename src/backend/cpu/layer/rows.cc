#include "backend/cpu/layer/rows.h"

#include "base/check.h"

namespace nanovllm {

RowKernels row_kernels(Isa isa, DType act) {
  NANOVLLM_CHECK(act == DType::kBFloat16 || act == DType::kFloat32);
  const bool bfloat16 = act == DType::kBFloat16;
  return with_isa(isa, [&]<Isa set>() { return row_kernels<set>(bfloat16); });
}

}  // namespace nanovllm
