#include "backend/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

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

}  // namespace

CUtensorMap make_tensor_map(const void* matrix, int rows, int cols, int parts, BoxShape box) {
  constexpr cuuint64_t kLine = 64;  // elements
  const cuuint64_t part_rows = static_cast<cuuint64_t>(rows / parts);
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(cols) * 2;
  const auto num_parts = static_cast<cuuint64_t>(parts);
  const cuuint64_t sizes[] = {kLine, part_rows, num_parts, static_cast<cuuint64_t>(cols) / kLine};
  const cuuint64_t stride_bytes[] = {row_bytes, part_rows * row_bytes, kLine * 2};
  const cuuint32_t box_sizes[] = {kLine, static_cast<cuuint32_t>(box.rows),
                                  static_cast<cuuint32_t>(parts),
                                  static_cast<cuuint32_t>(box.chunks)};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(matrix), sizes, stride_bytes,
      box_sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  NANOVLLM_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace nanovllm::cuda
