// Table look-up.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {

void CpuBackend::embedding(Tensor out, const int32_t* ids, Tensor table) {
  const int64_t width = out.row_size();
  pool_.parallel_for(out.rows(), [&](int64_t t, int) {
    const bool known = ids[t] >= 0 && ids[t] < table.rows();
    for (int64_t i = 0; i < width; ++i)
      out.f32()[t * width + i] = known ? load(table, ids[t] * width + i) : 0.0f;
  });
}

}  // namespace nanovllm
