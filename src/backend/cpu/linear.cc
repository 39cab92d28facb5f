// Matrix products with weights.
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar.h"
#include "base/check.h"

namespace nanovllm {
namespace {

struct CpuLinearWeight final : LinearWeight {
  std::vector<float> rows;  // [N, K]
  std::vector<float> bias;  // [N] or empty
};

float element(const HostMatrix& m, int64_t i) {
  if (m.dtype == DType::kFloat32) return static_cast<const float*>(m.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(m.data)[i];
  return m.dtype == DType::kBFloat16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

}  // namespace

std::unique_ptr<LinearWeight> CpuBackend::make_linear(std::span<const HostMatrix> pieces,
                                                      const float* bias, DType dtype) {
  auto weight = std::make_unique<CpuLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces[0].cols;
  for (const HostMatrix& piece : pieces) {
    NANOVLLM_CHECK(piece.cols == weight->in_features);
    weight->out_features += piece.rows;
    for (int64_t r = 0; r < piece.rows; ++r)
      for (int64_t k = 0; k < piece.cols; ++k) {
        const float value = element(piece, r * piece.row_stride + k);
        weight->rows.push_back(dtype == DType::kBFloat16 ? to_float(to_bfloat16(value)) : value);
      }
  }
  if (bias != nullptr) weight->bias.assign(bias, bias + weight->out_features);
  return weight;
}

void CpuBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CpuLinearWeight&>(weight);
  const int64_t k_size = w.in_features, n_size = w.out_features;
  pool_.parallel_for(n_size, [&](int64_t n, int) {
    for (int64_t m = 0; m < x.rows(); ++m) {
      float sum = w.bias.empty() ? 0.0f : w.bias[n];
      for (int64_t k = 0; k < k_size; ++k) sum += load(x, m * k_size + k) * w.rows[n * k_size + k];
      store(out, m * n_size + n, sum);
    }
  });
}

}  // namespace nanovllm
