// Rows of a table by id. Moves H * (size of act) bytes in and 4 H out for each token.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace nanovllm::cuda {
namespace {

template <typename T>
__global__ void embedding_kernel(float* out, const int32_t* ids, const T* table, int hidden,
                                 int num_ids, int32_t first_id) {
  const int64_t token = blockIdx.x;
  const int32_t id = ids[token] - first_id;
  const bool inside = id >= 0 && id < num_ids;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    out[token * hidden + i] = inside ? load(table + static_cast<int64_t>(id) * hidden + i) : 0.f;
  }
}

__global__ void gather_kernel(uint4* out, const uint4* x, const int32_t* rows, int64_t row_size) {
  const int64_t row = blockIdx.x;
  const uint4* source = x + static_cast<int64_t>(rows[row]) * row_size;
  for (int64_t i = threadIdx.x; i < row_size; i += blockDim.x) out[row * row_size + i] = source[i];
}

}  // namespace

void launch_embedding(cudaStream_t stream, float* out, const int32_t* ids, const void* table,
                      DType dtype, int num_tokens, int hidden, int num_ids, int32_t first_id) {
  if (num_tokens == 0) return;
  with_act_type(dtype, [&](auto act) {
    using T = decltype(act);
    embedding_kernel<<<num_tokens, 256, 0, stream>>>(out, ids, static_cast<const T*>(table), hidden,
                                                     num_ids, first_id);
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

void launch_gather_rows(cudaStream_t stream, void* out, const void* x, const int32_t* rows,
                        int num_rows, int64_t row_bytes) {
  if (num_rows == 0) return;
  gather_kernel<<<num_rows, 256, 0, stream>>>(static_cast<uint4*>(out),
                                              static_cast<const uint4*>(x), rows,
                                              row_bytes / static_cast<int64_t>(sizeof(uint4)));
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
