// Plans attention over the paged KV cache and runs the plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/attention/attention_task.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/thread_pool.h"
#include "ops/backend.h"

namespace nanovllm {

// Keeps its memory from call to call. For one caller at a time.
class PagedAttention {
 public:
  PagedAttention(ThreadPool& pool, Isa isa) : pool_(pool), isa_(isa) {}

  // Backend::paged_attention. Throws Error(kOutOfMemory) when there is none for scratch.
  void run(Tensor out, Tensor qkv, const KvCache& cache, const AttentionParams& params,
           const ForwardBatch& batch);

 private:
  // Consecutive rows of a sequence, for each KV head.
  struct Tile {
    int seq = 0;
    int first_row = 0;
    int rows = 0;
    int begin = 0;       // first key that some row sees
    int first_span = 0;  // spans of keys that some row sees: first_span .. end_span-1
    int end_span = 0;
    int64_t cost = 0;          // of one KV head
    int64_t split = -1;        // index among the tiles that are cut into spans, or -1
    int64_t states = 0;        // of the first KV head's first span, in floats
    int64_t state_stride = 0;  // floats from span to span
  };
  // What a thread takes at a time, for one KV head.
  struct Piece {
    const Tile* tile;
    int first_span;
    int end_span;
  };

  void plan_tiles(const ForwardBatch& batch, int group, int window);
  void plan_pieces(int num_kv_heads, int padded_dim);
  void reserve_memory(int num_kv_heads, int padded_dim);
  static const char* first_keys(const AttentionTask& base, const KvCacheSpec& spec,
                                const ForwardBatch& batch, const Piece& piece, int head);
  void run_piece(const AttentionKernels& kernels, AttentionTask task, const KvCacheSpec& spec,
                 const ForwardBatch& batch, const Piece& piece, int head, int thread);

  ThreadPool& pool_;
  const Isa isa_;
  std::vector<Tile> tiles_;
  std::vector<Piece> pieces_;
  int64_t num_split_ = 0;
  std::unique_ptr<std::atomic<int>[]> missing_spans_;  // [num_split, num_kv_heads]
  int64_t missing_capacity_ = 0;
  HostScratch scratch_memory_, state_memory_;
  float* scratch_ = nullptr;    // [num_threads, scratch_stride]
  int64_t scratch_stride_ = 0;  // floats
  float* states_ = nullptr;
  int64_t state_floats_ = 0;
};

}  // namespace nanovllm
