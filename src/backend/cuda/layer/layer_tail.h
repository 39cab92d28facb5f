// What a decoder layer does behind its attention, for few rows, in one kernel; see layer_tail.cu
// and layer_tail_large.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>

#include "backend/cuda/device/device_context.h"
#include "backend/cuda/linear/linear_skinny.h"
#include "backend/cuda/peers/peer_queue.h"

namespace nanovllm::cuda {

// Whether the kernels of whole tails run on a device.
bool runs_tail_kernels(const DeviceTraits& device);

// The kernels' blocks wait for each other: an instance holds Exclusive::kMeetingBlocks of its
// device. Processes that share a device take turns on it, and are no danger to each other, unless a
// server of CUDA's multi-process service merges them.
class LayerTailKernel {
 public:
  struct Made {
    std::unique_ptr<LayerTailKernel> kernel;  // null where they don't run, or somebody has them
    std::string holder;                       // then, who: "" = they don't run here
  };
  // Of the current device, for an engine of this name.
  static Made make(DeviceContext& device, std::string engine);
  ~LayerTailKernel();  // the launches must be over
  LayerTailKernel(const LayerTailKernel&) = delete;
  LayerTailKernel& operator=(const LayerTailKernel&) = delete;

  // Whether launch() and launch_large() take the products, whose rows are set.
  static bool takes(std::span<const SkinnyProduct, 4> products, int multiprocessors);
  static bool takes_large(std::span<const SkinnyProduct, 4> products, int multiprocessors);
  // The products of the attention's output, of gate and up, of the MLP's output and of the next
  // layer's attention, one after the other. The last may have no weight: then its norm alone, in
  // bfloat16, is its output. The second product's output is left unwritten.
  // All launches are of one stream.
  void launch(cudaStream_t stream, std::span<const SkinnyProduct, 4> products) const;
  // Likewise for larger layers, but that without a weight the last product's norm is the caller's
  // to compute. The first and third product are the sums of what the group's ranks have, which all
  // launch the same, together.
  void launch_large(const PeerQueue& queue, std::span<const SkinnyProduct, 4> products) const;

 private:
  LayerTailKernel(DeviceContext::Hold hold, int multiprocessors);

  const DeviceContext::Hold hold_;
  const int multiprocessors_;
  std::unique_ptr<Buffer> memory_;        // TailMemory
  std::unique_ptr<Buffer> large_memory_;  // LargeTailMemory
};

// layer_tail_large.cu's part of LayerTailKernel: the shared memory that its kernel takes and the
// device memory that it is to be given, which begins with all bits set.
size_t large_tail_shared_bytes();
size_t large_tail_memory_bytes();
void launch_large_tail(const PeerQueue& queue, std::span<const SkinnyProduct, 4> products,
                       int multiprocessors, void* memory);

}  // namespace nanovllm::cuda
