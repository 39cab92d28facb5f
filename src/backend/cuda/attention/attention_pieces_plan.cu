#include <utility>

#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/attention/attention_pieces.h"
#include "backend/cuda/attention/attention_pieces_plan.h"
#include "backend/cuda/device/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kQueueThreads = 512;
constexpr int kSizeUnit = 128;  // keys
constexpr int kSizes = KeyPieces::kLong / kSizeUnit;
static_assert(kSizes == kQueueThreads / 32, "a warp a size");

// The keys and pieces of a sequence.
struct PieceRange {
  int first_token, num_tokens, position;
  int begin, end;
  int first, count;

  __device__ PieceRange(const PieceProblem& p, int seq) {
    first_token = p.query_start_loc[seq];
    num_tokens = p.query_start_loc[seq + 1] - first_token;
    end = p.seq_lens[seq];
    position = end - num_tokens;
    begin = p.window > 0 ? max(0, position - p.window + 1) / 16 * 16 : 0;
    first = KeyPieces::index_of(begin);
    // A row of padding has no keys.
    count = position < 0 || num_tokens == 0 ? 0 : KeyPieces::index_of(end - 1) + 1 - first;
  }
  __device__ int begin_of(int i) const { return max(begin, KeyPieces::begin_of(first + i)); }
  __device__ int end_of(int i) const { return min(end, KeyPieces::end_of(first + i)); }
  __device__ int size_of(int i) const {
    return (end_of(i) - 1) / kSizeUnit - begin_of(i) / kSizeUnit;
  }
};

// Shared memory: places [kSizes, kQueueThreads], sums [num_seqs + 1]. Sequences are dealt to
// threads as prefix_sums() deals them.
__global__ void __launch_bounds__(kQueueThreads) queue_kernel(PieceProblem p, PieceQueue queue) {
  extern __shared__ int places[];
  __shared__ int totals[kSizes];
  int* const sums = places + kSizes * kQueueThreads;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int each = (p.num_seqs + kQueueThreads - 1) / kQueueThreads;
  const int begin = min(p.num_seqs, thread * each), end = min(p.num_seqs, begin + each);
#pragma unroll
  for (int size = 0; size < kSizes; ++size) places[size * kQueueThreads + thread] = 0;
  prefix_sums<kQueueThreads>(sums, p.num_seqs, [&](int s) {
    const PieceRange range(p, s);
#pragma unroll 1
    for (int i = 0; i < range.count; ++i) ++places[range.size_of(i) * kQueueThreads + thread];
    return range.count;
  });

  // Of a size, the pieces before this thread's.
  constexpr int kEach = kQueueThreads / 32;
  int* const row = places + warp * kQueueThreads + lane * kEach;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += row[i];
  int before = warp_prefix_sum(sum, lane);
  if (lane == 31) totals[warp] = before;
  before -= sum;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int here = row[i];
    row[i] = before;
    before += here;
  }
  __syncthreads();
  int larger = 0;
#pragma unroll
  for (int size = kSizes - 1; size >= 0; --size) {
    places[size * kQueueThreads + thread] += larger;
    larger += totals[size];
  }

  wait_for_predecessor();
#pragma unroll 1
  for (int s = begin; s < end; ++s) {
    const PieceRange range(p, s);
#pragma unroll 1
    for (int i = 0; i < range.count; ++i) {
      const int place = places[range.size_of(i) * kQueueThreads + thread]++;
      queue.pieces[place] = {s,
                             range.first_token,
                             range.num_tokens,
                             range.position,
                             range.begin_of(i),
                             range.end_of(i),
                             i,
                             range.count,
                             sums[s],
                             {}};
    }
  }
  if (thread == 0) *queue.count = sums[p.num_seqs];
}

// A queue and, behind its pieces, how many they are.
constexpr size_t kQueueBytes = (PieceQueues::kMaxPieces + 1) * sizeof(KeyPiece);

}  // namespace

PieceQueues::PieceQueues() : memory_(kMaxQueues * kQueueBytes) {}

PieceQueue PieceQueues::queue(size_t slot) const {
  auto* const pieces =
      reinterpret_cast<KeyPiece*>(static_cast<char*>(memory_.data()) + slot * kQueueBytes);
  return {pieces, reinterpret_cast<int*>(pieces + kMaxPieces)};
}

PieceQueues::Found PieceQueues::find(cudaStream_t stream, const PieceProblem& problem,
                                     uint64_t generation) {
  for (size_t slot = 0; slot < known_.size(); ++slot) {
    const Known& known = known_[slot];
    if (known.generation == generation && known.problem == problem) return {queue(slot), false};
  }
  NANOVLLM_CHECK(problem.num_seqs <= kMaxSeqs);
  const size_t slot = std::exchange(next_, (next_ + 1) % kMaxQueues);
  known_[slot] = {};
  const size_t ints = static_cast<size_t>(kSizes * kQueueThreads + problem.num_seqs + 1);
  launch(stream, queue_kernel, 1, kQueueThreads, ints * sizeof(int), problem, queue(slot));
  known_[slot] = {problem, generation};
  return {queue(slot), true};
}

}  // namespace nanovllm::cuda
