// Products by cuBLASLt: out[T,N] = x[T,K] W[N,K]^T, with the algorithm chosen once for shapes whose
// T has the same power of two above it.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <tuple>

#include "ops/tensor.h"

namespace nanovllm::cuda {

class CublasProducts {
 public:
  explicit CublasProducts(size_t workspace_bytes);
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  // The workspace, of workspace_bytes, is for one product at a time. `bias`: [n] of out's dtype,
  // which is added before the sum is rounded, or null. `out` may have more columns than n: the
  // product's are n neighbours from its data on.
  void multiply(cudaStream_t stream, void* workspace, Tensor out, Tensor x, const void* weight,
                const void* bias, int64_t n);

 private:
  // Rows, N, K, columns of out, dtype of x and of out, whether there is a bias.
  using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, DType, DType, bool>;
  struct Problem;
  static int64_t rows_of_algorithm(int64_t rows);
  cublasLtMatmulAlgo_t algorithm(const Shape& shape, const void* bias);

  cublasLtHandle_t handle_ = nullptr;
  const size_t workspace_bytes_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace nanovllm::cuda
