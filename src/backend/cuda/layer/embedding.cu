// Rows of a table by id. Moves H * (size of act) bytes in and 4 H out for each token; gather_rows
// moves a row's bytes in and out. Both 16 bytes at a time where addresses and sizes allow it.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/row_kernels.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 128;

uintptr_t bits_of(const void* a, const void* b, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
         static_cast<uintptr_t>(bytes);
}

template <int n, typename T>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(float* out, const int32_t* ids, const T* table, int hidden, int num_ids,
                     int32_t first_id, float scale) {
  wait_for_predecessor();
  release_successor();
  const int64_t token = blockIdx.x;
  const int64_t id = static_cast<int64_t>(ids[token]) - first_id;
  const bool inside = id >= 0 && id < num_ids;
  for (int i = static_cast<int>(threadIdx.x) * n; i < hidden; i += kThreads * n) {
    float x[n] = {};
    if (inside) load_vector(x, table + id * hidden + i);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      x[e] *= scale;
      if (sizeof(T) == 2) x[e] = round_to_bfloat16(x[e]);
    }
    store_vector(out + token * hidden + i, x);
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Unit* out, const Unit* x, const int32_t* rows, int64_t row_size) {
  wait_for_predecessor();
  release_successor();
  const int64_t row = blockIdx.x;
  const Unit* const source = x + static_cast<int64_t>(rows[row]) * row_size;
  for (int64_t i = threadIdx.x; i < row_size; i += kThreads) out[row * row_size + i] = source[i];
}

}  // namespace

void launch_embedding(cudaStream_t stream, float* out, const int32_t* ids, const void* table,
                      DType dtype, int num_tokens, int hidden, int num_ids, int32_t first_id,
                      float scale) {
  if (num_tokens == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    constexpr int kWide = 16 / static_cast<int>(sizeof(T));
    const auto row_bytes = static_cast<int64_t>(hidden) * static_cast<int64_t>(sizeof(T));
    const auto kernel = bits_of(out, table, row_bytes) % 16 == 0 ? embedding_kernel<kWide, T>
                                                                 : embedding_kernel<1, T>;
    launch(stream, kernel, dim3(num_tokens), dim3(kThreads), 0, out, ids,
           static_cast<const T*>(table), hidden, num_ids, first_id, scale);
  });
}

void launch_gather_rows(cudaStream_t stream, void* out, const void* x, const int32_t* rows,
                        int num_rows, int64_t row_bytes) {
  if (num_rows == 0) return;
  with_unit(bits_of(out, x, row_bytes), [&]<typename Unit>(Unit) {
    launch(stream, gather_kernel<Unit>, dim3(num_rows), dim3(kThreads), 0, static_cast<Unit*>(out),
           static_cast<const Unit*>(x), rows, row_bytes / static_cast<int64_t>(sizeof(Unit)));
  });
}

}  // namespace nanovllm::cuda
