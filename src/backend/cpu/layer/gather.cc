// Row selection.
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {

void CpuBackend::gather_rows(Tensor out, Tensor x, const int32_t* rows) {
  NANOVLLM_CHECK(out.dtype == x.dtype && out.row_size() == x.row_size());
  const size_t bytes = static_cast<size_t>(x.row_size()) * size_of(x.dtype);
  for_rows(pool_, out.rows(), x.row_size(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) std::memcpy(row_of(out, r), row_of(x, rows[r]), bytes);
  });
}

}  // namespace nanovllm
