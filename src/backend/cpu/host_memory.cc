#include "backend/cpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/message.h"
#include "base/resource_limits.h"

namespace nanovllm {
namespace {

[[noreturn]] void throw_out_of_memory(size_t bytes) {
  const MemoryInfo memory = read_memory_info();
  if (static_cast<int64_t>(bytes) < memory.free_bytes) {
    throw_error(
        ErrorCode::kOutOfMemory,
        "cannot map {} of memory, though {} bytes are free: presumably this process has as "
        "many mappings as vm.max_map_count allows; raise it (sysctl vm.max_map_count=1048576)",
        counted(static_cast<int64_t>(bytes), "byte"), memory.free_bytes);
  }
  throw_error(
      ErrorCode::kOutOfMemory,
      "cannot allocate {} of memory: {} bytes are free{}; use less KV cache, fewer tokens a step "
      "(max_num_batched_tokens), a smaller model or {}",
      counted(static_cast<int64_t>(bytes), "byte"), memory.free_bytes, memory.limit,
      memory.limit.empty() ? "a machine with more memory" : "raise that limit");
}

class MappedBuffer final : public Buffer {
 public:
  explicit MappedBuffer(size_t bytes) {
    // Room to cut the mapping to a huge page's boundary.
    const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
    mapped_bytes_ = bytes + slack;
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) throw_out_of_memory(bytes);
    uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
    if (slack > 0) {
      // What lies before and behind would be mappings of their own, of which a process has 65,530.
      const uintptr_t begin = address, end = begin + mapped_bytes_;
      address = (address + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
      const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
      const uintptr_t data_end = (address + bytes + page - 1) / page * page;
      if (address > begin) munmap(mapping_, address - begin);
      if (end > data_end) munmap(reinterpret_cast<void*>(data_end), end - data_end);
      mapping_ = reinterpret_cast<void*>(address);
      mapped_bytes_ = data_end - address;
      // Advice only: without huge pages everything works, slower.
      madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);
    }
    data_ = reinterpret_cast<void*>(address);
    bytes_ = bytes;
  }
  ~MappedBuffer() override { munmap(mapping_, mapped_bytes_); }
  MappedBuffer(const MappedBuffer&) = delete;
  MappedBuffer& operator=(const MappedBuffer&) = delete;

 private:
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
};

class Part final : public Buffer {
 public:
  Part(std::shared_ptr<Buffer> whole, size_t begin, size_t bytes) : whole_(std::move(whole)) {
    data_ = static_cast<char*>(whole_->data()) + begin;
    bytes_ = bytes;
  }

 private:
  std::shared_ptr<Buffer> whole_;
};

}  // namespace

std::unique_ptr<Buffer> HostArena::allocate(size_t bytes) {
  constexpr size_t kLine = 64;
  bytes = (bytes + kLine - 1) / kLine * kLine;
  if (chunk_ == nullptr || used_ + bytes > chunk_->bytes()) {
    chunk_.reset();
    chunk_ = allocate_host(std::max(bytes, chunk_bytes_));
    used_ = 0;
  }
  used_ += bytes;
  return std::make_unique<Part>(chunk_, used_ - bytes, bytes);
}

char* HostScratch::get(size_t bytes, size_t spare) {
  if (buffer_ == nullptr || buffer_->bytes() < bytes) {
    buffer_.reset();  // first, so that old and new are never held at once
    buffer_ = allocate_host(bytes + spare);
  }
  return static_cast<char*>(buffer_->data());
}

std::unique_ptr<Buffer> allocate_host(size_t bytes) {
  // The kernel would grant more than there is and kill the process when it is touched. Asking is
  // too slow for small allocations, which can hardly matter.
  if (bytes >= kHugePageBytes &&
      bytes > static_cast<size_t>(std::max<int64_t>(0, read_memory_info().free_bytes))) {
    throw_out_of_memory(bytes);
  }
  return std::make_unique<MappedBuffer>(std::max<size_t>(bytes, 1));
}

}  // namespace nanovllm
