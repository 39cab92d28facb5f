// Matrix products: y[T,N] = x[T,K] W^T + b. Weights stay as checkpoints have them, [N,K] row by
// row.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
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

// One row in the weight's dtype.
void convert_row(void* out, DType dtype, const HostMatrix& matrix, int64_t row) {
  const int64_t base = row * matrix.row_stride;
  for (int64_t i = 0; i < matrix.cols; ++i) {
    const float value = element(matrix, base + i);
    if (dtype == DType::kBFloat16) {
      static_cast<BFloat16*>(out)[i] = to_bfloat16(value);
    } else {
      static_cast<float*>(out)[i] = value;
    }
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
  weight->data = allocate(row_bytes * static_cast<size_t>(weight->out_features));
  auto* target = static_cast<char*>(weight->data->data());
  std::vector<char> staging;
  for (const HostMatrix& piece : pieces) {
    const size_t bytes = row_bytes * static_cast<size_t>(piece.rows);
    if (piece.dtype == dtype) {
      NANOVLLM_CUDA_CHECK(cudaMemcpy2DAsync(
          target, row_bytes, piece.data, static_cast<size_t>(piece.row_stride) * size_of(dtype),
          row_bytes, static_cast<size_t>(piece.rows), cudaMemcpyHostToDevice, stream_));
    } else {
      staging.resize(bytes);
      for (int64_t row = 0; row < piece.rows; ++row) {
        convert_row(staging.data() + static_cast<size_t>(row) * row_bytes, dtype, piece, row);
      }
      upload(target, staging.data(), bytes);
    }
    target += bytes;
  }
  if (bias != nullptr) {
    const size_t bytes = static_cast<size_t>(weight->out_features) * sizeof(float);
    weight->bias = allocate(bytes);
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
