// Large uploads from memory that is not pinned: a mapped checkpoint, as a rule.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "base/progress.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// Bytes go through pinned chunks, so that the device copies one while threads fill others. Any
// number of threads may copy at once: one alone fills at the speed of one core's memcpy, a fifth
// of what the bus takes.
class Uploader {
 public:
  // Copies are made in order with the other work of `stream`. `progress`, or null, advances with
  // each chunk.
  Uploader(int device, cudaStream_t stream, Progress* progress)
      : device_(device), stream_(stream), progress_(progress) {}
  ~Uploader() { release(); }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // fill(chunk, begin, count) writes bytes [begin, begin + count) of the whole to `chunk`; `begin`
  // is a multiple of kChunkBytes. Returns when everything has been filled; the last copies may
  // still be under way.
  using Fill = std::function<void(char* chunk, size_t begin, size_t count)>;
  void copy(void* target, size_t bytes, const Fill& fill);

  // Waits for the copies and frees the chunks; the next copy() makes new ones.
  void release();

  static constexpr size_t kChunkBytes = size_t{2} << 20;

 private:
  static constexpr int kMaxChunks = 32;

  struct Chunk {
    std::unique_ptr<Buffer> memory;
    cudaEvent_t copied = nullptr;
  };

  // Gives its chunk back, whatever happens.
  class Loan;
  Chunk take();
  Chunk make_chunk() const;
  void give_back(Chunk chunk);

  const int device_;
  const cudaStream_t stream_;
  Progress* const progress_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::deque<Chunk> idle_;  // the one whose copy was enqueued first in front
  int num_chunks_ = 0;
};

}  // namespace nanovllm::cuda
