// RMSNorm, alone and after adding to the residual stream.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {

void CpuBackend::rms_norm(Tensor out, Tensor x, const float* weight, float eps, float offset) {
  const int64_t width = x.row_size();
  pool_.parallel_for(x.rows(), [&](int64_t t, int) {
    const float* row = x.f32() + t * width;
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += row[i] * row[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, t * width + i, row[i] * scale * (offset + weight[i]));
  });
}

void CpuBackend::add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight, float eps,
                              float offset) {
  for (int64_t i = 0; i < residual.num_elements(); ++i) residual.f32()[i] += load(x, i);
  rms_norm(out, residual, weight, eps, offset);
}

}  // namespace nanovllm
