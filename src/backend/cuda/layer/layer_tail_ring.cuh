// A ring of slots in shared memory that one warp fills with rows of weights, as far ahead as there
// is room, and the others empty. The copies are the bulk copies of sm_90: one instruction a row,
// with the bytes counted by a barrier in shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/device/bulk_copy.cuh"
#include "backend/cuda/device/mma.cuh"

namespace nanovllm::cuda {

constexpr int kSlotFeatures = 8;
constexpr int kSlotDepth = 1024;  // elements of K

// Into L2.
__device__ inline void prefetch_bulk(const void* source, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Up to kSlotFeatures rows of weights, some of their columns: what a slot takes.
struct SlotPiece {
  const __nv_bfloat16* first;
  int num_rows;
  int64_t stride;  // elements between rows
  int length;      // elements of a row
  int row_bytes;   // between rows in the slot

  // One lane copies a row.
  __device__ void prefetch() const {
    const int lane = threadIdx.x % 32;
    if (lane < num_rows) prefetch_bulk(first + lane * stride, length * 2);
  }
};

// kRowBytes: the most between rows.
template <int kSlots, int kRowBytes>
struct RingMemory {
  alignas(128) uint8_t slots[kSlots][kSlotFeatures * kRowBytes];
  StageBarriers<kSlots> barriers;
};

// One warp's way around the ring; all lanes call together.
template <int kSlots, int kRowBytes>
class RingWalk {
 public:
  __device__ explicit RingWalk(RingMemory<kSlots, kRowBytes>& memory) : memory_(memory) {}

  // For the warp that fills: waits until the slot is empty, then starts the copies.
  __device__ void fill(const SlotPiece& piece, uint64_t policy = kEvictNormal) {
    memory_.barriers.empty[at_.place].wait(at_.parity ^ 1);
    const int lane = threadIdx.x % 32;
    Barrier& full = memory_.barriers.full[at_.place];
    if (lane == 0) full.expect(piece.num_rows * piece.length * 2);
    __syncwarp();
    if (lane < piece.num_rows) {
      copy_bulk(shared_address(memory_.slots[at_.place]) + lane * piece.row_bytes,
                piece.first + lane * piece.stride, piece.length * 2, full, policy);
    }
    at_.next();
  }

  // For the warps that empty: waits until the next `count` slots are full.
  __device__ void wait_for(int count) const {
    auto at = at_;
    for (int i = 0; i < count; ++i, at.next()) memory_.barriers.full[at.place].wait(at.parity);
  }
  // The address of the next one of those.
  __device__ uint32_t take() {
    const uint32_t slot = shared_address(memory_.slots[at_.place]);
    at_.next();
    return slot;
  }
  // Likewise, once it is full.
  __device__ uint32_t take_full() {
    memory_.barriers.full[at_.place].wait(at_.parity);
    return take();
  }
  // Gives the last `count` slots taken back.
  __device__ void give_back(int count) {
    __syncwarp();
    constexpr int kLanes = 32 / Barrier::kWarpArrivals;  // each gives a slot back
    for (int i = threadIdx.x % kLanes; i < count; i += kLanes) {
      const int slot = at_.place - 1 - i;
      memory_.barriers.empty[slot < 0 ? slot + kSlots : slot].arrive();
    }
  }

 private:
  RingMemory<kSlots, kRowBytes>& memory_;
  RingPlace<kSlots> at_;
};

}  // namespace nanovllm::cuda
