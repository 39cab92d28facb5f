// One matrix product as cuBLASLt wants it, with the algorithm chosen for its shape.
#pragma once

#include <cublasLt.h>

#include "backend/cuda/cuda_backend.h"

namespace nanovllm {

struct CudaBackend::Product {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  Product() = default;
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
};

}  // namespace nanovllm
