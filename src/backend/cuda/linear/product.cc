#include "backend/cuda/linear/product.h"

#include <bit>

#include "backend/cuda/device/cuda_check.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

}  // namespace

// The shapes of one product as cuBLASLt wants them. It thinks in columns: out^T[N,T] = W[N,K]
// x^T[K,T], with W and x as stored being K x N and K x T.
struct CublasProducts::Problem {
  Problem(const Shape& shape, const void* bias) {
    const auto [rows, n, k, out_columns, x_type, out_type, has_bias] = shape;
    NANOVLLM_CUDA_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      NANOVLLM_CUDA_CHECK(
          cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    NANOVLLM_CUDA_CHECK(cublasLtMatrixLayoutCreate(&weight, cuda_type(x_type), k, n, k));
    NANOVLLM_CUDA_CHECK(cublasLtMatrixLayoutCreate(&x, cuda_type(x_type), k, rows, k));
    NANOVLLM_CUDA_CHECK(
        cublasLtMatrixLayoutCreate(&out, cuda_type(out_type), n, rows, out_columns));
  }
  ~Problem() {
    cublasLtMatrixLayoutDestroy(weight);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatmulDescDestroy(description);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
};

CublasProducts::CublasProducts(size_t workspace_bytes) : workspace_bytes_(workspace_bytes) {
  NANOVLLM_CUDA_CHECK(cublasLtCreate(&handle_));
}

CublasProducts::~CublasProducts() { cublasLtDestroy(handle_); }

// Few kernels serve all numbers of rows: the first use of one makes the device wait for it to be
// loaded.
int64_t CublasProducts::rows_of_algorithm(int64_t rows) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
}

cublasLtMatmulAlgo_t CublasProducts::algorithm(const Shape& shape, const void* bias) {
  if (const auto found = algorithms_.find(shape); found != algorithms_.end()) return found->second;
  const Problem problem(shape, bias);
  cublasLtMatmulPreference_t preference = nullptr;
  NANOVLLM_CUDA_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  NANOVLLM_CUDA_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &workspace_bytes_, sizeof(workspace_bytes_)));
  // Partial sums stay float32 until the last.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  NANOVLLM_CUDA_CHECK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)));
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, problem.description, problem.weight, problem.x,
                                     problem.out, problem.out, preference, 1, &result, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  check(count > 0 ? status : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  return algorithms_[shape] = result.algo;
}

void CublasProducts::multiply(cudaStream_t stream, void* workspace, Tensor out, Tensor x,
                              const void* weight, const void* bias, int64_t n) {
  const Shape shape{x.rows(), n, x.row_size(), out.row_size(), x.dtype, out.dtype, bias != nullptr};
  Shape shape_of_algorithm = shape;
  std::get<0>(shape_of_algorithm) = rows_of_algorithm(x.rows());
  const cublasLtMatmulAlgo_t chosen = algorithm(shape_of_algorithm, bias);
  const Problem problem(shape, bias);
  const float one = 1, zero = 0;
  const auto run = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle_, problem.description, &one, weight, problem.weight, x.data,
                          problem.x, &zero, out.data, problem.out, out.data, problem.out,
                          &algorithm, workspace, workspace_bytes_, stream);
  };
  cublasStatus_t status = run(chosen);
  // An algorithm need not take fewer rows than it was chosen for.
  if (status != CUBLAS_STATUS_SUCCESS && shape != shape_of_algorithm) {
    status = run(algorithm(shape, bias));
  }
  check(status, "cublasLtMatmul");
}

}  // namespace nanovllm::cuda
