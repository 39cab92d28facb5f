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
  // Where products run.
  struct Queue {
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;  // of workspace_bytes, for one product at a time
    int multiprocessors = 0;    // that a product should be content with; 0 = all
  };
  explicit CublasProducts(size_t workspace_bytes);
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  // `accumulate` adds to out.
  void multiply(const Queue& queue, Tensor out, Tensor x, const void* weight, int64_t n,
                bool accumulate);

 private:
  // Rows, N, K, dtype of x and of out, multiprocessors.
  using Shape = std::tuple<int64_t, int64_t, int64_t, DType, DType, int>;
  struct Problem;
  static int64_t rows_of_algorithm(int64_t rows);
  cublasLtMatmulAlgo_t algorithm(const Shape& shape);

  cublasLtHandle_t handle_ = nullptr;
  const size_t workspace_bytes_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace nanovllm::cuda
