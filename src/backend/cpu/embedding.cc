// Table look-up.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rows.h"

namespace nanovllm {

void CpuBackend::embedding(Tensor out, const int32_t* ids, Tensor table, int32_t first_id) {
  NANOVLLM_CHECK(out.dtype == DType::kFloat32 && out.row_size() == table.row_size());
  const RowKernels kernels = row_kernels(isa_, table.dtype);
  const int64_t width = out.row_size();
  for_rows(pool_, out.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = int64_t{ids[t]} - first_id;
      float* to = out.f32() + t * width;
      if (row >= 0 && row < table.rows()) {
        kernels.widen(to, row_of(table, row), width);
      } else {
        std::fill(to, to + width, 0.0f);
      }
    }
  });
}

}  // namespace nanovllm
