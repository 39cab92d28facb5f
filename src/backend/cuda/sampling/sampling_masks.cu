// Masks from pinned host memory to their places in the table, read over the bus by the kernel
// itself: one launch in order with the step's other kernels, whatever the places. A mask of 151,936
// tokens is 19 KB, 0.4 us of a bus of 50 GB/s, where the row's logits are 608 KB, 0.2 us of a
// memory of 3 TB/s: 256 rows that all bring a new one take 100 us, twice as long as their scan, and
// a fiftieth of the step of a model of 0.6 billion parameters. Rows whose mask is in the table
// bring nothing. The bus is read before the kernel in front of this one has ended.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sampling/sampling_block.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes the words of a block of logits.
__global__ void __launch_bounds__(kThreads)
    masks_kernel(const __grid_constant__ MaskUpload upload, uint32_t* masks, int num_blocks) {
  static_assert(sizeof(uint4) == kMaskWords * sizeof(uint32_t));
  const int block = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int64_t mask = blockIdx.y;
  uint4 words = {};
  int64_t place = 0;
  if (block < num_blocks) {
    words = reinterpret_cast<const uint4*>(upload.words)[mask * num_blocks + block];
    place = upload.places[mask];
  }
  wait_for_predecessor();
  release_successor();
  if (block < num_blocks) reinterpret_cast<uint4*>(masks)[place * num_blocks + block] = words;
}

}  // namespace

void launch_sampling_masks(cudaStream_t stream, const SamplingStep& step,
                           const MaskUpload& upload) {
  if (upload.count == 0) return;
  launch(stream, masks_kernel, dim3(div_up(step.num_blocks, kThreads), upload.count),
         dim3(kThreads), 0, upload, step.masks, step.num_blocks);
}

}  // namespace nanovllm::cuda
