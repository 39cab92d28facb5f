// The KV cache on the device: [block][K, V][kv_head][block_size][head_dim], so that one head's
// tokens of a block are one contiguous piece of block_size * head_dim elements.
//
// Where there are tensor-core kernels, a token's chunks of 8 elements are swizzled: as they lie,
// the same chunk of eight tokens is found in as many different banks, once tiles of them are copied
// to shared memory as they are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm::cuda {

// What heads may have; check_shapes.h refuses models with others.
constexpr int kMaxHeadDim = 256;  // elements, a multiple of kHeadVector
constexpr int kHeadVector = 8;

struct KvView {
  int num_kv_heads, head_dim, block_size;
  bool is_swizzled;

  // Element i of a token's vector, of a head size of tensor-core kernels, lies at i ^ swizzle(dim,
  // token).
  static __host__ __device__ constexpr int swizzle(int dim, int token) {
    // Vectors begin in the same bank, or, of 192 bytes, in two by turns.
    return dim % 64 == 0 ? token % 8 * 8 : token / 2 % 4 * 8;
  }
  __host__ __device__ int swizzle(int token) const {
    return is_swizzled ? swizzle(head_dim, token) : 0;
  }
  // Element offset of the vector of a slot (block * block_size + offset); is_value picks K or V.
  __host__ __device__ int64_t offset(int64_t slot, int head, int is_value) const {
    return offset_in_block(slot / block_size, static_cast<int>(slot % block_size), head, is_value);
  }
  __host__ __device__ int64_t offset_in_block(int64_t block, int token, int head,
                                              int is_value) const {
    return (((block * 2 + is_value) * num_kv_heads + head) * block_size + token) * head_dim;
  }
};

// Head sizes of tensor-core kernels.
constexpr bool is_tensor_core_dim(int dim) {
  return dim == 64 || dim == 96 || dim == 128 || dim == 256;
}

inline KvView view_of(const KvCacheSpec& spec) {
  return {spec.num_kv_heads, spec.head_dim, spec.block_size,
          spec.dtype == DType::kBFloat16 && is_tensor_core_dim(spec.head_dim)};
}

}  // namespace nanovllm::cuda
