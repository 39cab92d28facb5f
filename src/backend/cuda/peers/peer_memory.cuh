// How GPUs of one process talk: each has a PeerMemory that all others write into over NVLink or
// PCIe, and every exchange has a number that all ranks count alike, in device memory, so that the
// kernels can be captured in graphs.
//
// A message is a Line: eight bytes of data, each four beside the number of the exchange. Words of
// eight bytes arrive whole, so whoever sees the number has the data: no fence, no flag, one way
// over the link (the LL protocol of NCCL). Lines are never cleared; a number comes again after 2^32
// exchanges.
//
// Blocks talk only to the blocks of the same index of the other ranks. All exchanges are launched
// with equal grids on all ranks, no larger than what is resident at once, so nobody waits for a
// block that can't start: as long as no other group's kernels, waiting for theirs, take the room
// (see CudaCommunicatorGroup).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nanovllm::cuda {

constexpr int kMaxRanks = 8;
constexpr int kPeerBlocks = 64;       // of an exchange
constexpr int kPeerThreads = 512;     // of a block, at most
constexpr int kLinesAtOnce = 2048;    // that a block sends to each rank: 16 KiB of data
constexpr int kMaxTailLines = 32768;  // 8 rows of 8,192 features; see layer_tail_large.cu
constexpr int kMaxTailCounts = 2048;

struct alignas(16) Line {
  uint32_t data0, number0, data1, number1;
};

struct PeerMemory {
  // [parity of the number][block][source]: while a rank reads those of one exchange, a faster one
  // may already send those of the next, but none of the one after it, for which it needs an answer.
  Line lines[2][kPeerBlocks][kMaxRanks][kLinesAtOnce];
  // [parity of the launch][which of a layer's sums][source][pair of features], of layer tails.
  Line tail_lines[2][2][kMaxRanks][kMaxTailLines];
  Line addresses[kPeerBlocks][kMaxRanks];  // [block][source] of what the source brings
  uint32_t done[kPeerBlocks][kMaxRanks];   // [block][source] number of the exchange it is done with
  uint32_t num_line_exchanges[kPeerBlocks];     // of this rank's block so far
  uint32_t num_address_exchanges[kPeerBlocks];  // likewise
  uint32_t last_tail[kMaxTailCounts];           // number of the last one, of each warp
};

// In host memory that every GPU sees.
struct PeerStatus {
  int aborted;    // a rank has failed: nobody waits any longer
  int timed_out;  // a rank has waited in vain for kPatienceNanoseconds
};

// Far more than kernels are apart that ranks launch together (peer_queue.h).
constexpr uint64_t kPatienceNanoseconds = 30'000'000'000;

// What a kernel knows of its group.
struct PeerGroup {
  int rank = 0;
  int world_size = 1;
  PeerMemory* memory[kMaxRanks] = {};  // [world_size]
  volatile PeerStatus* status = nullptr;
};

#ifdef __CUDACC__

// Counts how often a thread has looked in vain, and says when to give up.
class Patience {
 public:
  __device__ explicit Patience(const PeerGroup& group) : status_(group.status) {}

  __device__ bool is_over() {
    if (is_over_) return true;
    if (++looks_ % kLooksAtOnce != 0) return false;  // the status is a microsecond away
    is_over_ = is_over_now();
    return is_over_;
  }

 private:
  static constexpr uint32_t kLooksAtOnce = 4096;

  __device__ bool is_over_now() {
    if (status_->aborted != 0) return true;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (start_ == 0) start_ = now;
    if (now - start_ < kPatienceNanoseconds) return false;
    status_->timed_out = 1;
    status_->aborted = 1;
    return true;
  }

  volatile PeerStatus* status_;
  bool is_over_ = false;
  uint32_t looks_ = 0;
  uint64_t start_ = 0;
};

// The number after `number`, of the other parity; 0 is that of lines nobody has written yet.
__device__ inline uint32_t next_number(uint32_t number) { return number + 1 == 0 ? 2 : number + 1; }

__device__ inline void send(Line* line, uint2 data, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line), "r"(data.x),
               "r"(number), "r"(data.y)
               : "memory");
}

// False when the thread gave up.
__device__ inline bool receive(const Line* line, uint32_t number, uint2& data, Patience& patience) {
  uint32_t number0, number1;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data.x), "=r"(number0), "=r"(data.y), "=r"(number1)
                 : "l"(line)
                 : "memory");
    if (number0 == number && number1 == number) return true;
  } while (!patience.is_over());
  return false;
}

#endif

}  // namespace nanovllm::cuda
