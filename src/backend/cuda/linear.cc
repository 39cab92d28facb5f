// Matrix products: y[T,N] = x[T,K] W^T + b. Weights stay as checkpoints have them, [N,K] row by
// row.
#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/product.h"
#include "base/check.h"

namespace nanovllm {
namespace {

struct CudaLinearWeight final : LinearWeight {
  std::unique_ptr<Buffer> data;  // [N, K] of dtype
  std::unique_ptr<Buffer> bias;  // [N] float32, or none
};

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

float element(const HostMatrix& matrix, int64_t index) {
  switch (matrix.dtype) {
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(matrix.data)[index]);
    case DType::kFloat16:
      return half_to_float(static_cast<const uint16_t*>(matrix.data)[index]);
    default:
      return static_cast<const float*>(matrix.data)[index];
  }
}

// Elements [begin, end) of a matrix in `dtype`, counted row by row.
void read_elements(void* out, DType dtype, const HostMatrix& matrix, int64_t begin, int64_t end) {
  auto* target = static_cast<char*>(out);
  while (begin < end) {
    const int64_t col = begin % matrix.cols;
    const int64_t first = begin / matrix.cols * matrix.row_stride + col;
    const bool has_gaps = matrix.row_stride != matrix.cols;
    const int64_t count = has_gaps ? std::min(end - begin, matrix.cols - col) : end - begin;
    if (matrix.dtype == dtype) {
      const auto* source = static_cast<const char*>(matrix.data) + first * size_of(dtype);
      std::memcpy(target, source, static_cast<size_t>(count) * size_of(dtype));
    } else if (dtype == DType::kBFloat16) {
      auto* values = reinterpret_cast<BFloat16*>(target);
      for (int64_t i = 0; i < count; ++i) values[i] = to_bfloat16(element(matrix, first + i));
    } else {
      auto* values = reinterpret_cast<float*>(target);
      for (int64_t i = 0; i < count; ++i) values[i] = element(matrix, first + i);
    }
    target += static_cast<size_t>(count) * size_of(dtype);
    begin += count;
  }
}

}  // namespace

CudaBackend::Product::~Product() {
  cublasLtMatrixLayoutDestroy(weight);
  cublasLtMatrixLayoutDestroy(x);
  cublasLtMatrixLayoutDestroy(out);
  cublasLtMatmulDescDestroy(description);
}

std::unique_ptr<LinearWeight> CudaBackend::make_linear(std::span<const HostMatrix> pieces,
                                                       const float* bias, DType dtype) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces.front().cols;
  for (const HostMatrix& piece : pieces) weight->out_features += piece.rows;
  const size_t row_bytes = static_cast<size_t>(weight->in_features) * size_of(dtype);
  weight->data =
      std::make_unique<cuda::DeviceBuffer>(row_bytes * static_cast<size_t>(weight->out_features));
  auto* target = static_cast<char*>(weight->data->data());
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  for (const HostMatrix& piece : pieces) {
    const size_t bytes = row_bytes * static_cast<size_t>(piece.rows);
    uploader_->copy(target, bytes, [&](char* chunk, size_t begin, size_t count) {
      const auto first = static_cast<int64_t>(begin) / element_bytes;
      read_elements(chunk, dtype, piece, first,
                    first + static_cast<int64_t>(count) / element_bytes);
    });
    target += bytes;
  }
  if (bias != nullptr) {
    const size_t bytes = static_cast<size_t>(weight->out_features) * sizeof(float);
    weight->bias = std::make_unique<cuda::DeviceBuffer>(bytes);
    upload(weight->bias->data(), bias, bytes);
  }
  return weight;
}

// cuBLASLt thinks in columns: out^T[N,T] = W[N,K] x^T[K,T], with W and x as stored being K x N and
// K x T.
const CudaBackend::Product& CudaBackend::product(const ProductShape& shape) {
  auto& entry = products_[shape];
  if (entry != nullptr) return *entry;
  const auto [rows, n, k, x_type, out_type] = shape;
  auto made = std::make_unique<Product>();
  NANOVLLM_CUDA_CHECK(cublasLtMatmulDescCreate(&made->description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  NANOVLLM_CUDA_CHECK(cublasLtMatmulDescSetAttribute(made->description, CUBLASLT_MATMUL_DESC_TRANSA,
                                                     &transpose, sizeof(transpose)));
  NANOVLLM_CUDA_CHECK(cublasLtMatrixLayoutCreate(&made->weight, cuda_type(x_type), k, n, k));
  NANOVLLM_CUDA_CHECK(cublasLtMatrixLayoutCreate(&made->x, cuda_type(x_type), k, rows, k));
  NANOVLLM_CUDA_CHECK(cublasLtMatrixLayoutCreate(&made->out, cuda_type(out_type), n, rows, n));
  cublasLtMatmulPreference_t preference = nullptr;
  NANOVLLM_CUDA_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace = workspace_->bytes();
  NANOVLLM_CUDA_CHECK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(cublas_, made->description, made->weight, made->x, made->out,
                                     made->out, preference, 1, &result, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  cuda::check(count > 0 ? status : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  made->algorithm = result.algo;
  entry = std::move(made);
  return *entry;
}

void CudaBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  if (x.rows() == 0) return;
  NANOVLLM_CHECK(x.row_size() == w.in_features && out.row_size() == w.out_features &&
                 x.dtype == w.dtype);
  const Product& p = product({x.rows(), w.out_features, w.in_features, x.dtype, out.dtype});
  const float one = 1, zero = 0;
  NANOVLLM_CUDA_CHECK(cublasLtMatmul(cublas_, p.description, &one, w.data->data(), p.weight, x.data,
                                     p.x, &zero, out.data, p.out, out.data, p.out, &p.algorithm,
                                     workspace_->data(), workspace_->bytes(), stream_));
  if (w.bias != nullptr) {
    cuda::launch_add_bias(stream_, out.data, out.dtype, static_cast<float*>(w.bias->data()),
                          static_cast<int>(out.rows()), static_cast<int>(out.row_size()));
  }
}

}  // namespace nanovllm
