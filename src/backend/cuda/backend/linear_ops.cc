// Matrix products: y[T,N] = x[T,K] W^T + b. Weights stay as checkpoints have them, [N,K] row by
// row.
#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/backend/plan_rows.h"
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/memory.h"
#include "backend/cuda/linear/linear_float.h"
#include "backend/cuda/linear/linear_plan.h"
#include "backend/cuda/linear/linear_weight.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Elements [begin, end) of a matrix in `dtype`, counted row by row.
void read_range(void* out, DType dtype, HostMatrix matrix, int64_t begin, int64_t end) {
  if (matrix.is_contiguous()) {  // one long row
    matrix.first_col += matrix.first_row * matrix.cols;
    matrix.cols *= matrix.rows;
    matrix.first_row = 0;
  }
  auto* target = static_cast<char*>(out);
  while (begin < end) {
    const int64_t col = begin % matrix.cols;
    const int64_t count = std::min(end - begin, matrix.cols - col);
    read_elements(matrix, begin / matrix.cols, col, count, dtype, target);
    target += static_cast<size_t>(count) * size_of(dtype);
    begin += count;
  }
}

}  // namespace

std::unique_ptr<LinearWeight> CudaBackend::make_linear(std::span<const HostMatrix> pieces,
                                                       const float* bias, DType dtype) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = dtype;
  weight->format = to_string(dtype);
  weight->in_features = pieces.front().cols;
  for (const HostMatrix& piece : pieces) weight->out_features += piece.rows;
  const size_t row_bytes = static_cast<size_t>(weight->in_features) * size_of(dtype);
  weight->memory =
      std::make_unique<cuda::DeviceBuffer>(row_bytes * static_cast<size_t>(weight->out_features));
  weight->data = weight->memory->data();
  weight->bytes = static_cast<int64_t>(weight->memory->bytes());
  auto* target = static_cast<char*>(weight->memory->data());
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  for (const HostMatrix& piece : pieces) {
    const size_t bytes = row_bytes * static_cast<size_t>(piece.rows);
    uploader_->copy(target, bytes, [&](char* chunk, size_t begin, size_t count) {
      const auto first = static_cast<int64_t>(begin) / element_bytes;
      read_range(chunk, dtype, piece, first, first + static_cast<int64_t>(count) / element_bytes);
    });
    target += bytes;
  }
  if (bias == nullptr) return weight;
  const auto count = static_cast<size_t>(weight->out_features);
  const auto to_device = [&](const void* host, size_t bytes) {
    auto buffer = std::make_unique<cuda::DeviceBuffer>(bytes);
    upload(buffer->data(), host, bytes);
    return buffer;
  };
  weight->bias = to_device(bias, count * sizeof(float));
  if (dtype == DType::kBFloat16) {
    std::vector<BFloat16> rounded(count);
    std::transform(bias, bias + count, rounded.begin(), to_bfloat16);
    weight->rounded_bias = to_device(rounded.data(), count * sizeof(BFloat16));
  }
  return weight;
}

std::unique_ptr<LinearWeight> CudaBackend::make_linear_of_table(Tensor table) {
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = table.dtype;
  weight->out_features = table.rows();
  weight->in_features = table.row_size();
  weight->data = table.data;
  return weight;
}

void CudaBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  if (x.rows() == 0) return;
  NANOVLLM_CHECK(out.row_size() == w.out_features && x.row_size() == w.in_features &&
                 x.dtype == w.dtype);
  cuda::SkinnyProduct product = skinny_product(w);
  product.rows = static_cast<int>(x.rows());
  product.x = x.data;
  product.out = out.data;
  product.out_dtype = out.dtype;
  product.fixed_order = deterministic_;
  const cuda::ProductPlan plan = cuda::plan_product(product, x.dtype, traits_.properties);
  switch (plan.path) {
    case cuda::ProductPath::kStream:
      return cuda::launch_skinny(stream_, product, plan.stream);
    case cuda::ProductPath::kFloat:
      return cuda::launch_linear_float(stream_, out.f32(), x.data, x.dtype, w.data, w.bias_data(),
                                       product.rows, product.out_features, product.in_features);
    case cuda::ProductPath::kCublas:
      const bool rounds = w.bias != nullptr && out.dtype == DType::kBFloat16;
      products_->multiply(stream_, workspace_->data(), out, x, w.data,
                          rounds ? w.rounded_bias->data() : w.bias_data(), w.out_features);
  }
}

std::vector<PathChoice> CudaBackend::linear_paths(const LinearWeight& weight, DType out) const {
  cuda::SkinnyProduct product = skinny_product(weight);
  product.out_dtype = out;
  return cuda::product_choices(product, weight.dtype, traits_, deterministic_);
}

}  // namespace nanovllm
