// Launches with programmatic dependent launch: a kernel's blocks may start while the kernel before
// it on the stream still runs, so that its start-up (and whatever does not depend on the
// predecessor, the prefetch of weights above all) hides behind the predecessor's tail.
//
// The rule: every kernel launched by launch() calls wait_for_predecessor() in every thread before
// it reads what an earlier kernel wrote, and before it writes anything at all. (Decode attention
// and recurrent layers read the batch's lengths and places before, and older keys and values, or
// states and logs: the kernels that write them, and the first behind stage_batch_kernel, wait
// before they release.) The predecessor's
// results are complete then, and so are those of all kernels before it, because it waited likewise.
// release_successor() is a hint: once every block has called it or ended, the next kernel's blocks
// may be scheduled beside this kernel's; call it early when the successor fits beside, late
// otherwise.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "base/assert.h"

namespace nanovllm::cuda {

// Dynamic shared memory that a kernel gets unasked: 48 KiB, less what its static arrays may take.
constexpr size_t kDefaultSharedBytes = size_t{46} << 10;

// kernel<<<grid, block, shared_bytes, stream>>>(args...), in clusters of `cluster` blocks along x.
template <typename... Params, typename... Args>
void launch_clusters(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
                     int cluster, size_t shared_bytes, Args&&... args) {
  if (shared_bytes > kDefaultSharedBytes) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  cudaLaunchAttribute attributes[3] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  // Kernels run beside each other only where they want the same division of a multiprocessor's
  // memory into cache and shared memory: all of ours want as much shared memory as there is.
#if CUDART_VERSION >= 12050
  auto& carveout = attributes[config.numAttrs++];
  carveout.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  carveout.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
#else
  NANOVLLM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared));
#endif
  if (DeviceContext::current().traits().has_programmatic_launch) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  NANOVLLM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

// kernel<<<grid, block, shared_bytes, stream>>>(args...).
template <typename... Params, typename... Args>
void launch(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
            size_t shared_bytes, Args&&... args) {
  launch_clusters(stream, kernel, grid, block, 1, shared_bytes, std::forward<Args>(args)...);
}

// Calls f.operator()<n>() for the one of `values` that x is; false if it is none. For plans.
template <auto... values, typename T, typename F>
[[nodiscard]] bool try_constant(T x, F&& f) {
  const auto call_if_equal = [&]<auto value>() {
    if (x != value) return false;
    f.template operator()<value>();
    return true;
  };
  return (call_if_equal.template operator()<values>() || ...);
}

// The same for launches, whose plan says that it is one: nobody would notice what is not launched.
template <auto... values, typename T, typename F>
void with_constant(T x, F&& f) {
  const bool is_planned = try_constant<values...>(x, f);
  NANOVLLM_CHECK(is_planned);
}

__device__ inline void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void release_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace nanovllm::cuda
