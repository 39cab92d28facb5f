#include "backend/cuda/device/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "backend/cuda/device/cuda_check.h"
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

constexpr int64_t kLine = 64;  // elements

template <cuuint32_t kRank>
CUtensorMap encode(const void* matrix, const int64_t (&sizes)[kRank],
                   const int64_t (&stride_bytes)[kRank - 1], const int64_t (&box_sizes)[kRank],
                   CUtensorMapSwizzle swizzle) {
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1, 1};
  static_assert(kRank <= std::size(kSteps));
  cuuint64_t size[kRank], stride[kRank - 1];
  cuuint32_t box[kRank];
  std::ranges::copy(sizes, size);
  std::ranges::copy(stride_bytes, stride);
  std::ranges::copy(box_sizes, box);
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(matrix), size,
                stride, box, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NANOVLLM_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* matrix, int rows, int cols, int parts, BoxShape box) {
  const int64_t part_rows = rows / parts, row_bytes = int64_t{cols} * 2;
  return encode<4>(matrix, {kLine, part_rows, parts, cols / kLine},
                   {row_bytes, part_rows * row_bytes, kLine * 2},
                   {kLine, box.rows, parts, box.chunks}, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap make_line_map(const void* matrix, int64_t rows, int cols, int box_rows) {
  NANOVLLM_CHECK(rows <= std::numeric_limits<int32_t>::max());
  return encode<3>(matrix, {kLine, rows, cols / kLine}, {int64_t{cols} * 2, kLine * 2},
                   {kLine, box_rows, 1}, CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap make_expert_map(const void* weights, int experts, int parts, int rows, int cols,
                            int box_rows) {
  constexpr int64_t kGroup = 8;
  const int64_t part_rows = rows / parts, row_bytes = int64_t{cols} * 2;
  return encode<5>(weights, {cols, kGroup, parts, part_rows / kGroup, experts},
                   {row_bytes, part_rows * row_bytes, kGroup * row_bytes, rows * row_bytes},
                   {kLine, kGroup, parts, box_rows / kGroup, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap make_row_map(const void* matrix, int64_t rows, int cols, int box_rows) {
  return encode<2>(matrix, {cols, rows}, {int64_t{cols} * 2}, {kLine, box_rows},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace nanovllm::cuda
