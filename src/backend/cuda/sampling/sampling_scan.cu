// The one pass that reads every logit: R V 4 bytes in, 1/32 of that more of masked rows, 1/64 out.
// A warp takes blocks of 128 logits and keeps the largest and the mass of each, all of which later
// kernels need to know which few blocks they have to look into again. A row is spread over as many
// warps as the machine has room for: what a block's numbers are does not depend on that.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sampling/sampling_block.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
// With more of these the row has enough blocks for all SMs and each warp can have many in flight.
constexpr int kManyRows = 8;

template <int kUnroll, bool kMasked>  // blocks a warp; whether rows may have masks
__global__ void __launch_bounds__(kWarps * 32)
    scan_kernel(const __grid_constant__ ScanRows rows, const float* __restrict__ logits,
                const uint32_t* __restrict__ masks, int64_t vocab_size, int num_blocks,
                bool vector_aligned, BlockStats* stats, BlockStats* raw_stats) {
  const int row = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * kUnroll;
  const float rate = rows.rate[row];
  const uint32_t* const mask = kMasked ? mask_of(masks, rows.mask[row], num_blocks) : nullptr;
  const bool wants_raw = (rows.wants_raw[row / 32] >> (row % 32) & 1) != 0;
  wait_for_predecessor();
  release_successor();
  int block[kUnroll];
  float x[kUnroll][4];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    block[u] = first + u;
    load_block(x[u], logits + row * vocab_size, block[u], vocab_size, vector_aligned,
               kMinusInfinity);
  }
  BlockStats mine = {};  // lane u keeps those of block first + u
  BlockStats raw_mine = {};
  if (mask != nullptr) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const float top = warp_largest(x[u]);
      const float mass = wants_raw ? warp_mass(x[u], top, kLog2E) : 0.f;
      if (lane == u) raw_mine = {top, mass};
    }
    apply_mask(x, mask, block, num_blocks);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const float top = warp_largest(x[u]);
    const float mass = warp_mass(x[u], top, rate);
    if (lane == u) mine = {top, mass};
    if (mask != nullptr || !wants_raw) continue;
    const float raw = rate == kLog2E ? mass : warp_mass(x[u], top, kLog2E);
    if (lane == u) raw_mine = {top, raw};
  }
  // NaN and +inf spoil the row also where they are masked.
  if (mask != nullptr && !(raw_mine.max < -kMinusInfinity)) mine.max = raw_mine.max;
  if (lane >= kUnroll || first + lane >= num_blocks) return;
  const int64_t own = static_cast<int64_t>(row) * num_blocks + first + lane;
  stats[own] = mine;
  if (wants_raw) raw_stats[own] = raw_mine;
}

template <int kUnroll>
void launch_scan(cudaStream_t stream, const SamplingStep& step, const ScanRows& rows, int first_row,
                 int num_rows) {
  const dim3 grid(div_up(step.num_blocks, kWarps * kUnroll), num_rows);
  const int64_t first_block = static_cast<int64_t>(first_row) * step.num_blocks;
  const auto kernel =
      step.masks == nullptr ? scan_kernel<kUnroll, false> : scan_kernel<kUnroll, true>;
  launch(stream, kernel, grid, dim3(kWarps * 32), 0, rows,
         step.logits + first_row * step.vocab_size, step.masks, step.vocab_size, step.num_blocks,
         is_vector_aligned(step.logits, step.vocab_size), step.stats + first_block,
         step.raw_stats == nullptr ? nullptr : step.raw_stats + first_block);
}

}  // namespace

void launch_sampling_scan(cudaStream_t stream, const SamplingStep& step, const ScanRows& rows,
                          int first_row, int num_rows) {
  if (num_rows >= kManyRows) {
    launch_scan<8>(stream, step, rows, first_row, num_rows);
  } else {
    launch_scan<2>(stream, step, rows, first_row, num_rows);
  }
}

}  // namespace nanovllm::cuda
