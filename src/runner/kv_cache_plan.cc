#include "runner/kv_cache_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {
namespace {

struct Bound {
  int64_t num_blocks;
  std::string reason;
};

double share_of_memory(const EngineConfig& config, const DeviceMemory& memory) {
  return memory.is_of_host ? kCpuKvCacheShare : config.gpu_memory_utilization;
}

// Bytes for blocks and states.
int64_t budget_in_shares(const EngineConfig& config, const DeviceMemory& memory) {
  const double share = share_of_memory(config, memory);
  if (memory.is_of_host) {
    return static_cast<int64_t>(share * static_cast<double>(memory.free_now)) / memory.num_ranks;
  }
  return static_cast<int64_t>(share * static_cast<double>(memory.free_at_start)) -
         (memory.free_at_start - memory.free_now);
}

// For messages.
std::string beside_states(const KvCacheDemand& demand, int64_t bytes) {
  if (bytes == 0) return "";
  return fmt::format(" beside {} for {}", bytes,
                     bytes > demand.state_bytes ? "states" : "the states of one sequence");
}

// The same: what can be lowered, too.
const char* or_states(const KvCacheDemand& demand, int64_t bytes) {
  return bytes > demand.state_bytes ? " or state_cache_memory" : "";
}

struct StateRoom {
  int64_t num_sequences = 0;
  int64_t num_kept = 0;  // besides

  int64_t num_slots() const { return kSlotsOfSequence * num_sequences + num_kept; }
  int64_t bytes(const KvCacheDemand& demand) const {
    return num_sequences * demand.state_bytes + num_kept * demand.slot_bytes;
  }
};

StateRoom plan_states(const EngineConfig& config, const KvCacheDemand& demand,
                      const DeviceMemory& memory) {
  if (demand.state_bytes == 0) return {};
  if (config.state_cache_memory && *config.state_cache_memory < demand.state_bytes) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "state_cache_memory is {}, but the states of one sequence need {}; ask for as much, "
        "or leave it out",
        counted(*config.state_cache_memory, "byte"), demand.state_bytes);
  }
  int64_t bytes = budget_in_shares(config, memory) / 3;
  if (config.num_kvcache_blocks > 0) {
    bytes = config.num_kvcache_blocks * demand.block_bytes / 2;
  }
  if (config.kv_cache_memory) bytes = *config.kv_cache_memory / 3;
  if (config.state_cache_memory) bytes = *config.state_cache_memory;
  StateRoom room;
  room.num_sequences = std::clamp<int64_t>(bytes / demand.state_bytes, 1, config.max_num_seqs);
  const int64_t left = std::max<int64_t>(0, bytes - room.bytes(demand));
  if (config.enable_prefix_caching) {
    room.num_kept = std::min(left / demand.slot_bytes, kMostKept * room.num_sequences);
  }
  return room;
}

// The most blocks that a request of the whole context can use, whose last token needs none: where a
// window sees less than that, also those of the two largest steps.
int64_t blocks_of_request(const EngineConfig& config, const KvCacheDemand& demand) {
  const int64_t context = std::max(1, demand.context - 1), steps = config.max_num_batched_tokens;
  std::vector<int> windows = demand.windows;
  for (int& window : windows) {
    if (window > 0) window = static_cast<int>(std::min(window + 2 * steps, context));
  }
  return kv_blocks_for(context, windows, demand.block_size);
}

// A block for each group of layers.
int64_t least_blocks(const KvCacheDemand& demand) {
  return kv_blocks_for(1, demand.windows, demand.block_size);
}

// For messages.
std::string least_cache(const KvCacheDemand& demand) {
  const int64_t least = least_blocks(demand);
  if (least == 1) {
    return fmt::format("one block of {} tokens needs {}", demand.block_size, demand.block_bytes);
  }
  return fmt::format("{} blocks of {} tokens, one for each group of layers, need {}", least,
                     demand.block_size, least * demand.block_bytes);
}

// What the memory holds beside `reserved` bytes, and what so many sequences can use of it.
Bound bound_in_shares(const EngineConfig& config, const KvCacheDemand& demand,
                      const DeviceMemory& memory, int64_t reserved) {
  const double share = share_of_memory(config, memory);
  const int64_t budget = budget_in_shares(config, memory) - reserved;
  if (budget < least_blocks(demand) * demand.block_bytes) {
    throw_error(ErrorCode::kOutOfMemory,
                "no room for a KV cache: {} bytes{}, and of the {} "
                "free{} with the model loaded {} may be used ({}); free memory, lower "
                "max_num_batched_tokens{}, or set kv_cache_memory",
                least_cache(demand), beside_states(demand, reserved),
                counted(memory.free_now, "byte"), memory.limit,
                std::max<int64_t>(budget + reserved, 0),
                memory.is_of_host ? fmt::format("a share of {}", share)
                                  : fmt::format("gpu_memory_utilization {}", share),
                or_states(demand, reserved));
  }
  const int64_t request = blocks_of_request(config, demand);
  std::vector<Bound> bounds = {
      {budget / demand.block_bytes,
       memory.is_of_host ? fmt::format("{:.0f}% of the free memory", 100 * share)
                         : fmt::format("what gpu_memory_utilization {} leaves", share)},
      {request * config.max_num_seqs,
       counted(config.max_num_seqs, "request") + " of that length, max_num_seqs"}};
  if (memory.is_of_host) {
    const int64_t bytes =
        kWeightsUnasked * demand.weight_bytes + kKvCacheBytesUnasked / memory.num_ranks;
    const int64_t of_weights = bytes / demand.block_bytes, requests = kRequestsUnasked * request;
    if (of_weights >= requests) {
      bounds.push_back({of_weights, fmt::format("{} times the weights plus {} MiB", kWeightsUnasked,
                                                kKvCacheBytesUnasked >> 20)});
    } else {
      bounds.push_back({requests, counted(kRequestsUnasked, "request") + " of that length"});
    }
  }
  return *std::ranges::min_element(bounds, {}, &Bound::num_blocks);
}

}  // namespace

ContextLimit context_of(const EngineConfig& config, const ModelConfig& model) {
  const int own = model.max_context_length();
  const int asked = config.max_model_len;
  if (asked > own) {
    throw_error(ErrorCode::kInvalidArgument,
                "max_model_len is {}, but {} was made for {} tokens, prompt and output together; "
                "ask for no more, or leave it out",
                asked, model.model_dir.empty() ? "the model" : model.model_dir, own);
  }
  if (asked != -1) return {asked, "as asked for"};
  const RopeScaling& rope = model.rope_scaling;
  const int of_short_factors =
      rope.long_divisors.empty() ? own : rope.original_max_position_embeddings;
  if (of_short_factors < std::min(own, kMostUnasked)) {
    return {of_short_factors, "what the model's rotary factors for short contexts are for"};
  }
  if (kMostUnasked < own) return {kMostUnasked, "the most that is taken unasked"};
  return {own, "the model's own"};
}

ContextLimit context_in(const EngineConfig& config, const ContextLimit& context,
                        std::span<const int> windows, int num_blocks) {
  const int64_t fitting =
      kv_tokens_in(num_blocks, windows, config.kvcache_block_size, context.num_tokens) + 1;
  if (config.max_model_len != -1 || fitting >= context.num_tokens) return context;
  return {static_cast<int>(fitting), fmt::format("what the KV cache holds of {} tokens, {}",
                                                 context.num_tokens, context.reason)};
}

int64_t num_draft_blocks(int64_t num_blocks, std::span<const int> windows, int block_size,
                         int context) {
  const int64_t of_all_groups = kv_blocks_for(context, windows, block_size);
  const int64_t of_one = kv_blocks_for(context, std::vector{0}, block_size);
  return std::max<int64_t>(1, num_blocks * of_one / of_all_groups);
}

int64_t kv_block_bytes(const Backend& backend, const KvCacheSpec& spec,
                       std::span<const CacheGroup> groups) {
  return static_cast<int64_t>(backend.kv_block_bytes(spec)) * layers_in_block(groups);
}

// A place for a layer is not next to the block's other places but to the same place of the next
// block: kernels know nothing of the others.
std::vector<KvCache> split_kv_memory(const Backend& backend, const KvCacheSpec& spec,
                                     std::span<const CacheGroup> groups, void* memory,
                                     int num_blocks) {
  std::vector<KvCache> caches;
  const size_t bytes = backend.kv_block_bytes(spec) * static_cast<size_t>(num_blocks);
  for (size_t group = 0; group < groups.size(); ++group) {
    auto* place = static_cast<char*>(memory);
    for (const int layer : groups[group].layers) {
      if (std::ssize(caches) <= layer) caches.resize(layer + 1);
      NANOVLLM_CHECK(caches[layer].data == nullptr);
      caches[layer] = {
          .spec = spec, .data = place, .num_blocks = num_blocks, .group = static_cast<int>(group)};
      place += bytes;
    }
  }
  return caches;
}

KvCachePlan plan_kv_cache(const EngineConfig& config, const KvCacheDemand& demand,
                          const DeviceMemory& memory) {
  // Kernels address the cache's tokens by 32-bit slots.
  const int64_t most = std::numeric_limits<int32_t>::max() / demand.block_size;
  const StateRoom states = plan_states(config, demand, memory);
  const int64_t reserved = states.bytes(demand);
  int64_t num_blocks = config.num_kvcache_blocks;
  std::string reason = "num_kvcache_blocks";
  if (num_blocks > 0 && num_blocks < least_blocks(demand)) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "num_kvcache_blocks is {}, but layers are in {} groups, each of which needs a block",
        num_blocks, least_blocks(demand));
  }
  if (num_blocks > most) {
    throw_error(ErrorCode::kInvalidArgument,
                "num_kvcache_blocks is {}, but blocks of {} tokens allow at most {}", num_blocks,
                demand.block_size, most);
  }
  if (config.kv_cache_memory) {
    const int64_t bytes = *config.kv_cache_memory - (config.state_cache_memory ? 0 : reserved);
    const int64_t fitting = bytes / demand.block_bytes;
    if (fitting < least_blocks(demand)) {
      const int64_t for_states = *config.kv_cache_memory - bytes;
      throw_error(ErrorCode::kInvalidArgument, "kv_cache_memory is {}, but {}{}{}",
                  counted(*config.kv_cache_memory, "byte"), least_cache(demand),
                  beside_states(demand, for_states),
                  for_states > 0
                      ? "; raise it, or give states memory of their own with state_cache_memory"
                      : "");
    }
    if (num_blocks <= 0 || fitting < num_blocks) {
      num_blocks = fitting;
      reason = "kv_cache_memory";
    }
  } else if (num_blocks <= 0) {
    Bound bound = bound_in_shares(config, demand, memory, reserved);
    num_blocks = bound.num_blocks;
    reason = std::move(bound.reason);
  }
  if (num_blocks > most) {
    num_blocks = most;
    reason = "what kernels can address";
  }
  const int64_t free_bytes = memory.free_now / memory.num_ranks;
  if (free_bytes < reserved || num_blocks > (free_bytes - reserved) / demand.block_bytes) {
    throw_error(
        ErrorCode::kOutOfMemory,
        "a KV cache of {} needs {} bytes{}, but {} are free{}{}; lower num_kvcache_blocks or "
        "kv_cache_memory{}",
        counted(num_blocks, "block"), num_blocks * demand.block_bytes,
        beside_states(demand, reserved), free_bytes, memory.num_ranks > 1 ? " for each rank" : "",
        memory.limit, or_states(demand, reserved));
  }
  return {static_cast<int>(num_blocks), std::move(reason), static_cast<int>(states.num_sequences),
          static_cast<int>(states.num_slots())};
}

KvCachePlan shared_plan(const KvCachePlan& plan, int64_t least_blocks, int64_t least_states,
                        int64_t least_slots) {
  KvCachePlan shared = plan;
  shared.num_states = static_cast<int>(std::min<int64_t>(plan.num_states, least_states));
  shared.num_state_slots = static_cast<int>(std::min<int64_t>(plan.num_state_slots, least_slots));
  if (least_blocks >= plan.num_blocks) return shared;
  shared.num_blocks = static_cast<int>(least_blocks);
  shared.reason = "what another rank holds";
  return shared;
}

int64_t state_bytes(const Backend& backend, std::span<const StateGroup> groups, int num_slots,
                    int num_logs) {
  int64_t bytes = 0;
  for (const auto& [spec, layers] : groups) {
    const StateBytes one = backend.state_bytes(spec);
    bytes += (one.slot * num_slots + one.log * num_logs) * std::ssize(layers);
  }
  return bytes;
}

std::vector<StateCache> split_state_memory(const Backend& backend,
                                           std::span<const StateGroup> groups, void* memory,
                                           int num_slots, int num_logs) {
  std::vector<StateCache> caches;
  auto* begin = static_cast<char*>(memory);
  for (const auto& [spec, layers] : groups) {
    const StateBytes one = backend.state_bytes(spec);
    for (const int layer : layers) {
      if (std::ssize(caches) <= layer) caches.resize(layer + 1);
      char* const logs = begin + one.slot * num_slots;
      caches[layer] = {.spec = spec, .slots = begin, .logs = logs};
      begin = logs + one.log * num_logs;
    }
  }
  return caches;
}

}  // namespace nanovllm
