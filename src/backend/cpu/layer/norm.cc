// RMSNorm, alone and after adding to the residual stream.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {

void CpuBackend::rms_norm(Tensor out, Tensor x, const float* weight, float eps) {
  NANOVLLM_CHECK((x.dtype == DType::kFloat32 || x.dtype == out.dtype) &&
                 out.num_elements() == x.num_elements());
  const RowKernels kernels = row_kernels(isa_, out.dtype);
  const int64_t width = x.row_size();
  for_rows(pool_, x.rows(), width, [&](int64_t begin, int64_t end) {
    std::vector<float> widened(x.dtype == DType::kFloat32 ? 0 : static_cast<size_t>(width));
    for (int64_t t = begin; t < end; ++t) {
      if (!widened.empty()) kernels.widen(widened.data(), row_of(x, t), width);
      const float* row = widened.empty() ? x.f32() + t * width : widened.data();
      kernels.rms_norm(row_of(out, t), row, weight, width, eps);
    }
  });
}

void CpuBackend::add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight,
                              float eps) {
  NANOVLLM_CHECK(residual.dtype == DType::kFloat32 && out.dtype == x.dtype);
  NANOVLLM_CHECK(residual.num_elements() == x.num_elements());
  const RowKernels kernels = row_kernels(isa_, x.dtype);
  const int64_t width = residual.row_size();
  for_rows(pool_, residual.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = residual.f32() + t * width;
      kernels.add(row, row_of(x, t), width);
      kernels.rms_norm(row_of(out, t), row, weight, width, eps);
    }
  });
}

}  // namespace nanovllm
