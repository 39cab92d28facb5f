// Large zeroed allocations backed by huge pages.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/backend.h"

namespace nanovllm {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Zeroed, aligned to 64 bytes (to 2 MiB from 2 MiB on, where it asks for huge pages); pages that
// are never touched cost nothing. Throws Error(kOutOfMemory) when more is wanted than this process
// may take. Thread-safe.
std::unique_ptr<Buffer> allocate_host(size_t bytes);

// Cuts buffers, aligned to 64 bytes, from large ones, which live as long as any part of them: so
// many small ones lie in huge pages too, and take few of the mappings that a process may have. Not
// thread-safe; its buffers may outlive it.
class HostArena {
 public:
  explicit HostArena(size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}  // or what one takes
  std::unique_ptr<Buffer> allocate(size_t bytes);
  // Takes the last one back.
  void undo(std::unique_ptr<Buffer> last) { used_ -= last->bytes(); }

 private:
  const size_t chunk_bytes_;
  std::shared_ptr<Buffer> chunk_;
  size_t used_ = 0;  // bytes of it
};

// Memory that grows to the most it was asked for, and `spare` beyond; then what it held is lost.
class HostScratch {
 public:
  char* get(size_t bytes, size_t spare = 0);

 private:
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace nanovllm
