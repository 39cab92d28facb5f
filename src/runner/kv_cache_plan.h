// How large the KV cache is made, and which part of it is whose.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/config.h"
#include "ops/backend.h"

namespace nanovllm {

// Of one block: its tokens' keys and values for all layers of this rank.
int64_t kv_block_bytes(const Backend& backend, std::span<const KvCacheGroup> groups);
// Each layer's part, [num_layers], of memory for num_blocks such blocks.
std::vector<KvCache> split_kv_memory(const Backend& backend, std::span<const KvCacheGroup> groups,
                                     void* memory, int num_blocks);

struct KvCacheDemand {
  int64_t block_bytes = 0;
  int block_size = 0;     // tokens
  int max_model_len = 0;  // tokens
};

struct DeviceMemory {
  bool is_of_host = true;
  int num_ranks = 1;          // cpu: that share it, each with a KV cache of its own
  int64_t free_at_start = 0;  // bytes, before the weights were loaded
  int64_t free_now = 0;       // bytes, with weights and workspace
  std::string limit = {};     // MemoryInfo's
};

// Of the memory that is free once a model is loaded, the part that its KV cache takes on a CPU
// where nothing else is asked for: the machine has other work, and gpu_memory_utilization does not
// apply.
inline constexpr double kCpuKvCacheShare = 0.4;

// The number of blocks:
// - num_kvcache_blocks where it is given, and no more than kv_cache_memory holds where that is too;
// - else what kv_cache_memory holds, which is every rank's alone;
// - else what is left of gpu_memory_utilization of the device (on the CPU: kCpuKvCacheShare of what
//   is free), but no more than max_num_seqs sequences of max_model_len tokens can use.
// Throws Error(kOutOfMemory), with the bytes needed and free, when that does not fit or is less
// than one block, and Error(kInvalidArgument) when kv_cache_memory is less than one block or
// num_kvcache_blocks more than kernels can address.
int plan_kv_cache(const EngineConfig& config, const KvCacheDemand& demand,
                  const DeviceMemory& memory);

}  // namespace nanovllm
