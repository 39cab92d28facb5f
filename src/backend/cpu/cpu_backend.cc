#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/host_memory.h"
#include "base/check.h"
#include "base/resource_limits.h"

namespace nanovllm {

CpuBackend::CpuBackend(const CpuOptions& options)
    : isa_(options.max_isa ? std::min(*options.max_isa, detected_isa()) : default_isa()),
      weight_streams_(options.streams),
      pool_(options.num_threads, options.progress) {}

std::string CpuBackend::description() const {
  const int threads = pool_.num_threads();
  return fmt::format("cpu ({}, {} thread{})", to_string(isa_), threads, threads == 1 ? "" : "s");
}

// So few rows of logits that the memory they take stays small (a row of 150,000 tokens is 600 KB)
// and yet so many that the head's weights are not what costs.
BackendTraits CpuBackend::traits() const {
  return {.shares_host_memory = true, .computes_with_codes = true, .max_logits_rows = 128};
}

MemoryInfo CpuBackend::memory() const { return read_memory_info(); }

std::unique_ptr<Buffer> CpuBackend::allocate(size_t bytes) { return allocate_host(bytes); }

void CpuBackend::upload(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::download(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

std::unique_ptr<Buffer> CpuBackend::allocate_staging(size_t bytes) { return allocate_host(bytes); }

void CpuBackend::stage_batch(int32_t* device, const int32_t* host, int64_t count,
                             int64_t num_token_ids, const int32_t* previous_ids) {
  std::copy_n(host, count, device);
  for (int64_t i = 0; i < num_token_ids; ++i) {
    if (device[i] < 0) device[i] = std::max(0, previous_ids[-1 - device[i]]);
  }
}

}  // namespace nanovllm
