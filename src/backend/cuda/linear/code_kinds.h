// Kernels of one kind of codes each, which are compiled in a file of their own: code_*_4.cu and so
// on.
#pragma once

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_stream.h"
#include "backend/cuda/linear/code_wgmma.h"

namespace nanovllm::cuda {

template <CodeKind kKind>
void launch_product_kind(cudaStream_t stream, const CodeProduct& p, const CodePlan& plan);
template <CodeKind kKind>
void launch_stream_kind(cudaStream_t stream, const CodeProduct& p, const StreamPlan& plan);
template <CodeKind kKind>
void launch_wgmma_kind(cudaStream_t stream, const CodeProduct& p, const CodeWgmmaPlan& plan);

// Calls f.operator()<kind>().
template <typename F>
void with_kind(CodeKind kind, F&& f) {
  using enum CodeKind;
  with_constant<k4, kTable4, k5, k6, kInt8, kE4M3>(kind, f);
}

}  // namespace nanovllm::cuda
