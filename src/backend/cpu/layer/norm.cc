// RMSNorm, alone, after adding to the residual stream, and over all heads of q and k.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {
namespace {

void norm_row(const RowKernels& kernels, void* out, const float* x, const float* weight,
              int64_t width, float eps) {
  const float factor =
      weight != nullptr ? 1 / std::sqrt(kernels.mean_square(x, width) + eps) : 1.0f;
  kernels.scale(out, x, weight, width, factor);
}

}  // namespace

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
      norm_row(kernels, row_of(out, t), row, weight, width, eps);
    }
  });
}

void CpuBackend::add_rms_norm(Tensor out, Tensor residual, Tensor x, float scale,
                              const float* weight, float eps) {
  NANOVLLM_CHECK(residual.dtype == DType::kFloat32 && out.dtype == x.dtype);
  NANOVLLM_CHECK(residual.num_elements() == x.num_elements());
  const RowKernels kernels = row_kernels(isa_, x.dtype);
  const int64_t width = residual.row_size();
  for_rows(pool_, residual.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = residual.f32() + t * width;
      kernels.add(row, row_of(x, t), width, scale);
      norm_row(kernels, row_of(out, t), row, weight, width, eps);
    }
  });
}

// A KV head that several ranks hold counts for each of them: the mean stays the same.
void CpuBackend::norm_all_heads(Tensor qkv, Tensor means, const HeadsNormParams& norm) {
  const RowKernels kernels = row_kernels(isa_, qkv.dtype);
  const auto for_parts = [&](auto call) {
    for_rows(pool_, qkv.rows(), qkv.row_size(), [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(norm.q_width + norm.k_width));
      for (int64_t t = begin; t < end; ++t) {
        char* const row = static_cast<char*>(row_of(qkv, t));
        kernels.widen(x.data(), row, norm.q_width + norm.k_width);
        float* const mean = means.f32() + 2 * t;
        call(mean[0], row, x.data(), norm.q_weight, norm.q_width);
        call(mean[1], row + static_cast<size_t>(norm.q_width) * size_of(qkv.dtype),
             x.data() + norm.q_width, norm.k_weight, norm.k_width);
      }
    });
  };
  for_parts([&](float& mean, void*, const float* x, const float*, int width) {
    mean = kernels.mean_square(x, width);
  });
  all_reduce(means);
  const auto ranks = static_cast<float>(world_size());
  for_parts([&](float& mean, void* out, const float* x, const float* weight, int width) {
    kernels.scale(out, x, weight, width, 1 / std::sqrt(mean / ranks + norm.eps));
  });
}

}  // namespace nanovllm
