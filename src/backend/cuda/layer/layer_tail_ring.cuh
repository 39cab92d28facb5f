// A ring of slots in shared memory that one warp fills with rows of weights, as far ahead as there
// is room, and the others empty. The copies are the bulk copies of sm_90: one instruction a row,
// with the bytes counted by a barrier in shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/linear/mma.cuh"

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
  Barrier full[kSlots], empty[kSlots];

  __device__ void init(int num_consumers) {
    for (int i = 0; i < kSlots; ++i) {
      full[i].init(1);
      empty[i].init_warps(num_consumers);
    }
  }
};

// One warp's way around the ring; all lanes call together.
template <int kSlots, int kRowBytes>
class RingWalk {
 public:
  __device__ explicit RingWalk(RingMemory<kSlots, kRowBytes>& memory) : memory_(memory) {}

  // For the warp that fills: waits until the slot is empty, then starts the copies.
  __device__ void fill(const SlotPiece& piece, uint64_t policy = kEvictNormal) {
    memory_.empty[slot_].wait(parity_ ^ 1);
    const int lane = threadIdx.x % 32;
    Barrier& full = memory_.full[slot_];
    if (lane == 0) full.expect(piece.num_rows * piece.length * 2);
    __syncwarp();
    if (lane < piece.num_rows) {
      copy_bulk(shared_address(memory_.slots[slot_]) + lane * piece.row_bytes,
                piece.first + lane * piece.stride, piece.length * 2, full, policy);
    }
    advance();
  }

  // For the warps that empty: waits until the next `count` slots are full.
  __device__ void wait_for(int count) const {
    int slot = slot_;
    uint32_t parity = parity_;
    for (int i = 0; i < count; ++i) {
      memory_.full[slot].wait(parity);
      if (++slot == kSlots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
  // The address of the next one of those.
  __device__ uint32_t take() {
    const uint32_t slot = shared_address(memory_.slots[slot_]);
    advance();
    return slot;
  }
  // Likewise, once it is full.
  __device__ uint32_t take_full() {
    memory_.full[slot_].wait(parity_);
    return take();
  }
  // Gives the last `count` slots taken back.
  __device__ void give_back(int count) {
    __syncwarp();
    constexpr int kLanes = 32 / Barrier::kWarpArrivals;  // each gives a slot back
    for (int i = threadIdx.x % kLanes; i < count; i += kLanes) {
      const int slot = slot_ - 1 - i;
      memory_.empty[slot < 0 ? slot + kSlots : slot].arrive();
    }
  }

 private:
  __device__ void advance() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

  RingMemory<kSlots, kRowBytes>& memory_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace nanovllm::cuda
