#include "backend/cuda/backend/uploader.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/memory.h"

namespace nanovllm::cuda {

class Uploader::Loan {
 public:
  explicit Loan(Uploader& owner) : owner_(owner), chunk_(owner.take()) {}
  ~Loan() { owner_.give_back(std::move(chunk_)); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  char* memory() const { return static_cast<char*>(chunk_.memory->data()); }
  cudaEvent_t copied() const { return chunk_.copied; }

 private:
  Uploader& owner_;
  Chunk chunk_;
};

void Uploader::copy(void* target, size_t bytes, const Fill& fill) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  for (size_t begin = 0; begin < bytes; begin += kChunkBytes) {
    const size_t count = std::min(kChunkBytes, bytes - begin);
    const Loan chunk(*this);
    NANOVLLM_CUDA_CHECK(cudaEventSynchronize(chunk.copied()));
    fill(chunk.memory(), begin, count);
    NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(target) + begin, chunk.memory(), count,
                                        cudaMemcpyHostToDevice, stream_));
    NANOVLLM_CUDA_CHECK(cudaEventRecord(chunk.copied(), stream_));
    if (progress_ != nullptr) progress_->advance();
  }
}

Uploader::Chunk Uploader::take() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [&] { return !idle_.empty() || num_chunks_ < kMaxChunks; });
  if (idle_.empty()) {
    ++num_chunks_;
    lock.unlock();
    try {
      return make_chunk();
    } catch (...) {
      lock.lock();
      --num_chunks_;
      given_back_.notify_one();
      throw;
    }
  }
  Chunk chunk = std::move(idle_.front());
  idle_.pop_front();
  return chunk;
}

Uploader::Chunk Uploader::make_chunk() const {
  Chunk chunk{.memory = std::make_unique<PinnedBuffer>(kChunkBytes)};
  NANOVLLM_CUDA_CHECK(cudaEventCreateWithFlags(&chunk.copied, cudaEventDisableTiming));
  return chunk;
}

void Uploader::give_back(Chunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(chunk));
  }
  given_back_.notify_one();
}

void Uploader::release() {
  cudaStreamSynchronize(stream_);
  for (Chunk& chunk : idle_) cudaEventDestroy(chunk.copied);
  idle_.clear();
  num_chunks_ = 0;
}

}  // namespace nanovllm::cuda
