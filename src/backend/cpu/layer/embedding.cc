// Table look-up.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {

void CpuBackend::embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                           int32_t first_id) {
  const HostMatrix& host = table.host;
  const DType act = table.rows.dtype;
  NANOVLLM_CHECK(out.dtype == DType::kFloat32 && out.row_size() == host.cols);
  const RowKernels kernels = row_kernels(isa_, act);
  const int64_t width = out.row_size();
  const bool as_it_is = host.decoder == nullptr && host.dtype == act;
  for_rows(pool_, out.rows(), width, [&](int64_t begin, int64_t end) {
    std::vector<char> converted(as_it_is ? 0 : static_cast<size_t>(width) * size_of(act));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = int64_t{ids[t]} - first_id;
      float* to = out.f32() + t * width;
      if (row < 0 || row >= host.rows) {
        std::fill(to, to + width, 0.0f);
      } else if (as_it_is) {
        kernels.widen(to, host.row_data(row), width);
      } else {
        read_elements(host, row, 0, width, act, converted.data());
        kernels.widen(to, converted.data(), width);
      }
      if (table.scale == 1) continue;
      for (int64_t i = 0; i < width; ++i) {
        to[i] *= table.scale;
        if (act == DType::kBFloat16) to[i] = to_float(to_bfloat16(to[i]));
      }
    }
  });
}

}  // namespace nanovllm
