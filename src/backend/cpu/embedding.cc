// Table look-up.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {

void CpuBackend::embedding(Tensor out, const int32_t* ids, Tensor table, int32_t first_id) {
  const int64_t width = out.row_size();
  pool_.parallel_for(out.rows(), [&](int64_t t, int) {
    const int64_t row = int64_t{ids[t]} - first_id;
    const bool known = row >= 0 && row < table.rows();
    for (int64_t i = 0; i < width; ++i)
      out.f32()[t * width + i] = known ? load(table, row * width + i) : 0.0f;
  });
}

}  // namespace nanovllm
