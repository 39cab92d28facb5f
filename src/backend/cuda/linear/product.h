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

  // The workspace, of workspace_bytes, is for one product at a time. `accumulate` adds to out.
  void multiply(cudaStream_t stream, void* workspace, Tensor out, Tensor x, const void* weight,
                int64_t n, bool accumulate);

 private:
  // Rows, N, K, dtype of x and of out.
  using Shape = std::tuple<int64_t, int64_t, int64_t, DType, DType>;
  struct Problem;
  static int64_t rows_of_algorithm(int64_t rows);
  cublasLtMatmulAlgo_t algorithm(const Shape& shape);

  cublasLtHandle_t handle_ = nullptr;
  const size_t workspace_bytes_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace nanovllm::cuda
