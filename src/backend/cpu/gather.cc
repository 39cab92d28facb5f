// Row selection.
#include <cstring>

#include "backend/cpu/cpu_backend.h"

namespace nanovllm {

void CpuBackend::gather_rows(Tensor out, Tensor x, const int32_t* rows) {
  const size_t bytes = static_cast<size_t>(x.row_size()) * size_of(x.dtype);
  for (int64_t r = 0; r < out.rows(); ++r)
    std::memcpy(out.as<char>() + static_cast<size_t>(r) * bytes,
                x.as<char>() + static_cast<size_t>(rows[r]) * bytes, bytes);
}

}  // namespace nanovllm
