#include "runner/kv_cache_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/message.h"

namespace nanovllm {
namespace {

int64_t blocks_in_shares(const EngineConfig& config, const KvCacheDemand& demand,
                         const DeviceMemory& memory) {
  const double share = memory.is_of_host ? kCpuKvCacheShare : config.gpu_memory_utilization;
  const int64_t budget =
      memory.is_of_host
          ? static_cast<int64_t>(share * static_cast<double>(memory.free_now)) / memory.num_ranks
          : static_cast<int64_t>(share * static_cast<double>(memory.free_at_start)) -
                (memory.free_at_start - memory.free_now);
  if (budget < demand.block_bytes) {
    throw_error(ErrorCode::kOutOfMemory,
                "no room for a KV cache: one block of {} tokens needs {} bytes, and of the {} "
                "free{} with the model loaded {} may be used ({}); free memory, lower "
                "max_num_batched_tokens, or set kv_cache_memory",
                demand.block_size, demand.block_bytes, counted(memory.free_now, "byte"),
                memory.limit, std::max<int64_t>(budget, 0),
                memory.is_of_host ? fmt::format("a share of {}", share)
                                  : fmt::format("gpu_memory_utilization {}", share));
  }
  const int64_t blocks_per_sequence =
      (demand.max_model_len + demand.block_size - 1) / demand.block_size;
  return std::min(budget / demand.block_bytes, blocks_per_sequence * config.max_num_seqs);
}

}  // namespace

int64_t kv_block_bytes(const Backend& backend, std::span<const KvCacheGroup> groups) {
  size_t bytes = 0;
  for (const auto& [spec, layers] : groups) bytes += backend.kv_block_bytes(spec) * layers.size();
  return static_cast<int64_t>(bytes);
}

std::vector<KvCache> split_kv_memory(const Backend& backend, std::span<const KvCacheGroup> groups,
                                     void* memory, int num_blocks) {
  std::vector<KvCache> caches;
  auto* begin = static_cast<char*>(memory);
  for (const auto& [spec, layers] : groups) {
    for (const int layer : layers) {
      if (std::ssize(caches) <= layer) caches.resize(layer + 1);
      NANOVLLM_CHECK(caches[layer].data == nullptr);
      caches[layer] = {.spec = spec, .data = begin, .num_blocks = num_blocks};
      begin += backend.kv_block_bytes(spec) * num_blocks;
    }
  }
  return caches;
}

int plan_kv_cache(const EngineConfig& config, const KvCacheDemand& demand,
                  const DeviceMemory& memory) {
  // Kernels address the cache's tokens by 32-bit slots.
  const int64_t most = std::numeric_limits<int32_t>::max() / demand.block_size;
  int64_t num_blocks = config.num_kvcache_blocks;
  if (num_blocks > most) {
    throw_error(ErrorCode::kInvalidArgument,
                "num_kvcache_blocks is {}, but blocks of {} tokens allow at most {}", num_blocks,
                demand.block_size, most);
  }
  if (config.kv_cache_memory) {
    const int64_t fitting = *config.kv_cache_memory / demand.block_bytes;
    if (fitting < 1) {
      throw_error(ErrorCode::kInvalidArgument,
                  "kv_cache_memory is {}, but one block of {} tokens needs {}",
                  counted(*config.kv_cache_memory, "byte"), demand.block_size, demand.block_bytes);
    }
    num_blocks = num_blocks > 0 ? std::min(num_blocks, fitting) : fitting;
  } else if (num_blocks <= 0) {
    num_blocks = blocks_in_shares(config, demand, memory);
  }
  num_blocks = std::min(num_blocks, most);
  const int64_t free_bytes = memory.free_now / memory.num_ranks;
  if (num_blocks > free_bytes / demand.block_bytes) {
    throw_error(ErrorCode::kOutOfMemory,
                "a KV cache of {} needs {} bytes, but {} are free{}{}; lower num_kvcache_blocks or "
                "kv_cache_memory",
                counted(num_blocks, "block"), num_blocks * demand.block_bytes, free_bytes,
                memory.num_ranks > 1 ? " for each rank" : "", memory.limit);
  }
  return static_cast<int>(num_blocks);
}

}  // namespace nanovllm
