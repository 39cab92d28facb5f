#include "backend/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <iterator>
#include <limits>

#include "backend/cuda/cuda_check.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

// The driver's, found at run time: the library must load where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
#if CUDART_VERSION >= 12050
    NANOVLLM_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                         cudaEnableDefault, &result));
#else
    NANOVLLM_CUDA_CHECK(
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
#endif
    NANOVLLM_CHECK(result == cudaDriverEntryPointSuccess);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

constexpr cuuint64_t kLine = 64;  // elements

template <cuuint32_t kRank>
CUtensorMap encode(const void* matrix, const cuuint64_t (&sizes)[kRank],
                   const cuuint64_t (&stride_bytes)[kRank - 1],
                   const cuuint32_t (&box_sizes)[kRank], CUtensorMapSwizzle swizzle) {
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
  static_assert(kRank <= std::size(kSteps));
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(matrix), sizes,
                stride_bytes, box_sizes, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NANOVLLM_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* matrix, int rows, int cols, int parts, BoxShape box) {
  const cuuint64_t part_rows = static_cast<cuuint64_t>(rows / parts);
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(cols) * 2;
  const auto num_parts = static_cast<cuuint64_t>(parts);
  return encode<4>(matrix, {kLine, part_rows, num_parts, static_cast<cuuint64_t>(cols) / kLine},
                   {row_bytes, part_rows * row_bytes, kLine * 2},
                   {kLine, static_cast<cuuint32_t>(box.rows), static_cast<cuuint32_t>(parts),
                    static_cast<cuuint32_t>(box.chunks)},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap make_line_map(const void* matrix, int64_t rows, int cols, int box_rows) {
  const auto row_bytes = static_cast<cuuint64_t>(cols) * 2;
  NANOVLLM_CHECK(rows <= std::numeric_limits<int32_t>::max());
  return encode<3>(matrix,
                   {kLine, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(cols) / kLine},
                   {row_bytes, kLine * 2}, {kLine, static_cast<cuuint32_t>(box_rows), 1},
                   CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap make_expert_map(const void* weights, int experts, int parts, int rows, int cols,
                            int box_rows) {
  constexpr cuuint32_t kGroup = 8;
  const auto num_parts = static_cast<cuuint64_t>(parts);
  const cuuint64_t part_rows = static_cast<cuuint64_t>(rows) / num_parts;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(cols) * 2;
  return encode<5>(weights,
                   {static_cast<cuuint64_t>(cols), kGroup, num_parts, part_rows / kGroup,
                    static_cast<cuuint64_t>(experts)},
                   {row_bytes, part_rows * row_bytes, kGroup * row_bytes,
                    static_cast<cuuint64_t>(rows) * row_bytes},
                   {kLine, kGroup, static_cast<cuuint32_t>(parts),
                    static_cast<cuuint32_t>(box_rows) / kGroup, 1},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap make_row_map(const void* matrix, int64_t rows, int cols, int box_rows) {
  return encode<2>(matrix, {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(cols) * 2}, {kLine, static_cast<cuuint32_t>(box_rows)},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace nanovllm::cuda
