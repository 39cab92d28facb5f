// How long a request may be, how large the KV cache is, and which part of it each layer gets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/model_config.h"
#include "nanovllm/config.h"
#include "ops/backend.h"
#include "runner/cache_groups.h"

namespace nanovllm {

// Bytes of one block: keys and values of its tokens for as many layers as a group has.
int64_t kv_block_bytes(const Backend& backend, const KvCacheSpec& spec,
                       std::span<const CacheGroup> groups);
// Each layer's cache, [num_layers], in memory for num_blocks such blocks. Layers at one place in
// the blocks of several groups have the same memory.
std::vector<KvCache> split_kv_memory(const Backend& backend, const KvCacheSpec& spec,
                                     std::span<const CacheGroup> groups, void* memory,
                                     int num_blocks);

// The context, in tokens: how long a prompt and its output may be together.
struct ContextLimit {
  int num_tokens = 0;
  // For people: "the model's own".
  std::string reason;
};
// EngineConfig::max_model_len; throws Error(kInvalidArgument) where that is more than the model was
// made for. Where it is -1, kMostUnasked, but no more than the model was made for, nor than what
// its rotary factors for short contexts were made for (LongRoPE), as those for long ones would
// change its answers to short prompts.
ContextLimit context_of(const EngineConfig& config, const ModelConfig& model);
inline constexpr int kMostUnasked = 65'536;  // tokens
// The same once the KV cache is there: what nobody asked for is lowered to what one request has
// room for. Its last token needs none. `windows`: of the groups, see kv_blocks_for.
ContextLimit context_in(const EngineConfig& config, const ContextLimit& context,
                        std::span<const int> windows, int num_blocks);

// How many blocks a draft model needs beside num_blocks of the target, as it has KV of one group's
// tokens alone, which keeps all: its share of the blocks is largest in the longest texts, of
// `context` tokens. `windows`: of the target's groups, see kv_blocks_for.
int64_t num_draft_blocks(int64_t num_blocks, std::span<const int> windows, int block_size,
                         int context);

struct KvCacheDemand {
  int64_t block_bytes = 0;
  // Of what recurrent layers keep of one running sequence, kSlotsOfSequence slots and a log; 0 =
  // there are none.
  int64_t state_bytes = 0;
  int64_t slot_bytes = 0;
  int block_size = 0;              // tokens
  int context = 0;                 // tokens
  int64_t weight_bytes = 0;        // of this rank, in memory
  std::vector<int> windows = {0};  // of the groups, see kv_blocks_for
};

struct DeviceMemory {
  // true: the memory of the host (CPU).
  bool is_of_host = true;
  // Ranks that share this memory; each has a KV cache of its own. 1 on a GPU.
  int num_ranks = 1;
  // Bytes, before the weights were loaded.
  int64_t free_at_start = 0;
  // Bytes, now that weights and workspace are there.
  int64_t free_now = 0;
  // For messages: MemoryInfo::limit.
  std::string limit = {};
};

// The part of the free memory, with the model loaded, that the KV cache takes on a CPU by default:
// the machine has other work too. (gpu_memory_utilization is for GPUs.)
inline constexpr double kCpuKvCacheShare = 0.4;

// Beyond this, a CPU's KV cache has no more than what kRequestsUnasked requests need: a small model
// must not take a machine's memory.
inline constexpr int64_t kKvCacheBytesUnasked = int64_t{512} << 20;  // of all ranks, and
inline constexpr int64_t kWeightsUnasked = 8;                        // times the weights
inline constexpr int64_t kRequestsUnasked = 4;

struct KvCachePlan {
  int num_blocks = 0;
  // For people: "40% of the free memory".
  std::string reason;
  // Sequences whose states there is room for; 0 = none have any.
  int num_states = 0;
  // Slots of states: those of the sequences, and others for states that are kept for prompts.
  int num_state_slots = 0;
};

// The number of blocks:
// - num_kvcache_blocks, if given, but no more than kv_cache_memory holds, if that is given too;
// - else what kv_cache_memory holds; each rank has that many bytes for itself;
// - else what is left of gpu_memory_utilization of the device (on the CPU: kCpuKvCacheShare of the
//   free memory), but no more than max_num_seqs requests of the whole context can use, each with
//   the largest step, and, on the CPU, no more than the larger of kWeightsUnasked times the weights
//   and kKvCacheBytesUnasked, and kRequestsUnasked such requests.
// States of recurrent layers have state_cache_memory or, by default, a third of that memory, and
// blocks the rest: room for one sequence at least, for max_num_seqs at most, and for kMostKept
// states for each of them that are kept for prompts, if any are. Beside a
// kv_cache_memory or num_kvcache_blocks that are given, a state_cache_memory that is given is
// memory of its own; and beside num_kvcache_blocks alone, the default is half of what those blocks
// take. Throws Error(kOutOfMemory), with the bytes needed and free, if that does not fit or is less
// than a block for each group, and Error(kInvalidArgument) if kv_cache_memory or num_kvcache_blocks
// is, or num_kvcache_blocks is more than kernels can address.
KvCachePlan plan_kv_cache(const EngineConfig& config, const KvCacheDemand& demand,
                          const DeviceMemory& memory);
// A rank's plan where all ranks have as many blocks, and room for as many states, as the one with
// the least memory.
KvCachePlan shared_plan(const KvCachePlan& plan, int64_t least_blocks, int64_t least_states = 0,
                        int64_t least_slots = 0);

// Slots for states of such a sequence: one that it reads, one that it writes next.
inline constexpr int kSlotsOfSequence = 2;
// As many as a chat of some turns has use for.
inline constexpr int kMostKept = 16;
// Of all layers' slots and logs.
int64_t state_bytes(const Backend& backend, std::span<const StateGroup> groups, int num_slots,
                    int num_logs);
// Each layer's part, by layer, of memory for so many.
std::vector<StateCache> split_state_memory(const Backend& backend,
                                           std::span<const StateGroup> groups, void* memory,
                                           int num_slots, int num_logs);

}  // namespace nanovllm
