// The queue of pieces that warps of attention_pieces.cu take their work from, largest first. All
// layers of a step take the same one: a kernel of its own writes it once.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "backend/cuda/device/memory.h"

namespace nanovllm::cuda {

// A piece of the keys of a sequence's new tokens, for each of its units of work.
struct alignas(16) KeyPiece {
  int seq;
  int first_token, num_tokens;  // rows of qkv and out
  int position;                 // of the first of them
  int begin, end;               // keys that at least one of them sees, but for up to 15 at `begin`
  int index, count;             // among the pieces of the sequence
  int first_slot;               // of the sequence's pieces among all
  int unused[3];
};

// What a queue depends on.
struct PieceProblem {
  const int32_t* query_start_loc = nullptr;
  const int32_t* seq_lens = nullptr;
  int num_seqs = 0;
  int window = 0;

  bool operator==(const PieceProblem&) const = default;
};

struct PieceQueue {
  KeyPiece* pieces = nullptr;
  int* count = nullptr;
};

// The queues of a stream's batch, see DecodePlans.
class PieceQueues {
 public:
  static constexpr int kMaxPieces = 1 << 14;
  static constexpr int kMaxSeqs = 1 << 13;

  PieceQueues();

  struct Found {
    PieceQueue queue;
    bool is_new;  // its kernel is what runs before the caller's
  };
  // Launches the kernel that writes the queue unless it has been since `generation` of the batch.
  Found find(cudaStream_t stream, const PieceProblem& problem, uint64_t generation);

 private:
  PieceQueue queue(size_t slot) const;

  DeviceBuffer memory_;
  struct Known {
    PieceProblem problem;
    uint64_t generation = 0;
  };
  static constexpr size_t kMaxQueues = 8;
  std::array<Known, kMaxQueues> known_;
  size_t next_ = 0;
};

}  // namespace nanovllm::cuda
