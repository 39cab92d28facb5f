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

}  // namespace nanovllm
