// Attention over the paged KV cache: cuts a ragged batch into pieces of work and deals them to
// threads. How a piece is computed, and why the plan never shows in the result, is told in
// attention_kernel.h.
#include "backend/cpu/attention/attention.h"

#include <algorithm>

#include "backend/cpu/attention/kv_layout.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {
namespace {

// Reading keys and values costs as much as computing this many rows of them.
constexpr int64_t kRowsOfReading = 4;
// A tile bigger than 1/kPiecesPerThread of a thread's share is cut into its spans.
constexpr int64_t kPiecesPerThread = 8;

AttentionKernels kernels_for(Isa isa, bool bfloat16) {
  return with_isa(isa, [&]<Isa set>() { return attention_kernels<set>(bfloat16); });
}

// Bounds the memory for states of spans (64 MiB): tiles are left whole beyond it.
constexpr int64_t kMaxStateFloats = int64_t{16} << 20;

constexpr int64_t round_up_to_line(int64_t floats) { return (floats + 15) / 16 * 16; }

float* reserve(HostScratch& memory, int64_t floats) {
  const auto bytes = static_cast<size_t>(floats) * sizeof(float);
  return reinterpret_cast<float*>(memory.get(bytes, bytes / 2));
}

// What all tasks of a call have in common.
AttentionTask base_task(Tensor out, Tensor qkv, const KvCache& cache,
                        const AttentionParams& params) {
  const KvLayout layout(cache.spec);
  AttentionTask task;
  task.group = params.num_heads / cache.spec.num_kv_heads;
  task.q = qkv.data;
  task.q_stride = qkv.row_size();
  task.out = out.data;
  task.out_stride = out.row_size();
  task.head_dim = cache.spec.head_dim;
  task.padded_dim = layout.padded_dim;
  task.scale = params.scale;
  task.soft_cap = params.soft_cap;
  task.window = params.window;
  task.sinks = params.sinks;
  task.keys = static_cast<const char*>(cache.data);
  task.values = task.keys + layout.values;
  task.block_bytes = layout.block;
  task.key_tile_bytes = layout.key_tile;
  task.value_tile_bytes = layout.value_tile;
  task.block_size = cache.spec.block_size;
  return task;
}

}  // namespace

// Tiles of the batch, those with most work first.
void PagedAttention::plan_tiles(const ForwardBatch& batch, int group, int window) {
  tiles_.clear();
  for (int s = 0; s < batch.num_seqs; ++s) {
    const int num_new = batch.query_start_loc[s + 1] - batch.query_start_loc[s];
    const int first_position = batch.seq_lens[s] - num_new;
    const int rows = num_new * group;
    for (int row = 0; row < rows; row += kMaxAttentionRows) {
      Tile tile;
      tile.seq = s;
      tile.first_row = row;
      tile.rows = std::min(kMaxAttentionRows, rows - row);
      const int begin = window > 0 ? std::max(0, first_position + row / group - window + 1) : 0;
      const int end = first_position + (row + tile.rows - 1) / group + 1;
      tile.begin = begin;
      tile.first_span = begin / kAttentionSpan;
      tile.end_span = (end - 1) / kAttentionSpan + 1;
      tile.cost = int64_t{end - begin} * (tile.rows + kRowsOfReading);
      tiles_.push_back(tile);
    }
  }
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
}

// Whole tiles, or the spans of tiles that would keep one thread busy for too long.
void PagedAttention::plan_pieces(int num_kv_heads, int padded_dim) {
  pieces_.clear();
  num_split_ = 0;
  state_floats_ = 0;
  int64_t total_cost = 0;
  for (const Tile& tile : tiles_) total_cost += tile.cost * num_kv_heads;
  const int threads = pool_.num_threads();
  for (Tile& tile : tiles_) {
    const int spans = tile.end_span - tile.first_span;
    const int64_t stride = round_up_to_line(attention_state_floats(tile.rows, padded_dim));
    const int64_t floats = stride * spans * num_kv_heads;
    if (threads == 1 || spans == 1 || tile.cost * threads * kPiecesPerThread <= total_cost ||
        state_floats_ + floats > kMaxStateFloats) {
      pieces_.push_back({&tile, tile.first_span, tile.end_span});
      continue;
    }
    tile.split = num_split_++;
    tile.state_stride = stride;
    tile.states = state_floats_;
    state_floats_ += floats;
    for (int span = tile.first_span; span < tile.end_span; ++span) {
      pieces_.push_back({&tile, span, span + 1});
    }
  }
}

// Scratch for every thread and state for every span that is computed apart.
void PagedAttention::reserve_memory(int num_kv_heads, int padded_dim) {
  scratch_stride_ = round_up_to_line(attention_scratch_floats(padded_dim));
  scratch_ = reserve(scratch_memory_, scratch_stride_ * pool_.num_threads());
  states_ = reserve(state_memory_, state_floats_);
  if (missing_capacity_ < num_split_ * num_kv_heads) {
    missing_capacity_ = 2 * num_split_ * num_kv_heads;
    missing_spans_ = std::make_unique<std::atomic<int>[]>(missing_capacity_);
  }
  for (const Tile& tile : tiles_) {
    for (int head = 0; tile.split >= 0 && head < num_kv_heads; ++head) {
      missing_spans_[tile.split * num_kv_heads + head].store(tile.end_span - tile.first_span,
                                                             std::memory_order_relaxed);
    }
  }
}

// Where a piece's keys begin.
const char* PagedAttention::first_keys(const AttentionTask& base, const KvCacheSpec& spec,
                                       const ForwardBatch& batch, const Piece& piece, int head) {
  const Tile& tile = *piece.tile;
  const int key = std::max(piece.first_span * kAttentionSpan, tile.begin);
  const int64_t block =
      batch.block_table[int64_t{tile.seq} * batch.block_table_stride + key / spec.block_size];
  return base.keys + block * base.block_bytes + head * KvLayout(spec).head +
         key % spec.block_size / kKvTile * base.key_tile_bytes;
}

void PagedAttention::run_piece(const AttentionKernels& kernels, AttentionTask task,
                               const KvCacheSpec& spec, const ForwardBatch& batch,
                               const Piece& piece, int head, int thread) {
  const Tile& tile = *piece.tile;
  const int64_t first_token = batch.query_start_loc[tile.seq];
  const int num_new = batch.query_start_loc[tile.seq + 1] - batch.query_start_loc[tile.seq];
  const auto element = static_cast<int64_t>(size_of(spec.dtype));
  const int64_t head_offset = int64_t{head} * task.group * spec.head_dim;
  const KvLayout layout(spec);
  task.first_row = tile.first_row;
  task.rows = tile.rows;
  task.first_position = batch.seq_lens[tile.seq] - num_new;
  task.q = static_cast<const char*>(task.q) + (first_token * task.q_stride + head_offset) * element;
  task.out = static_cast<char*>(task.out) + (first_token * task.out_stride + head_offset) * element;
  if (task.sinks != nullptr) task.sinks += int64_t{head} * task.group;
  task.keys += head * layout.head;
  task.values += head * layout.head;
  task.block_table = batch.block_table + int64_t{tile.seq} * batch.block_table_stride;
  task.first_span = piece.first_span;
  task.end_span = piece.end_span;
  float* scratch = scratch_ + thread * scratch_stride_;
  if (tile.split < 0) {
    kernels.attend(task, scratch);
    return;
  }
  const int spans = tile.end_span - tile.first_span;
  float* states = states_ + tile.states + tile.state_stride * spans * head;
  kernels.attend_span(task, scratch,
                      states + tile.state_stride * (piece.first_span - tile.first_span));
  // Whoever finishes the last span merges them all.
  std::atomic<int>& missing = missing_spans_[tile.split * spec.num_kv_heads + head];
  if (missing.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    kernels.combine(task, states, tile.state_stride, spans);
  }
}

void PagedAttention::run(Tensor out, Tensor qkv, const KvCache& cache,
                         const AttentionParams& params, const ForwardBatch& batch) {
  const KvCacheSpec& spec = cache.spec;
  const AttentionKernels kernels = kernels_for(isa_, spec.dtype == DType::kBFloat16);
  const AttentionTask base = base_task(out, qkv, cache, params);
  plan_tiles(batch, base.group, params.window);
  plan_pieces(spec.num_kv_heads, base.padded_dim);
  reserve_memory(spec.num_kv_heads, base.padded_dim);
  // One queue, most work first: what is left at the end is small, so threads finish together.
  const int heads = spec.num_kv_heads;
  const auto num_tasks = static_cast<int64_t>(pieces_.size()) * heads;
  std::atomic<int64_t> next{0};
  pool_.parallel_for(std::min<int64_t>(pool_.num_threads(), num_tasks), [&](int64_t, int thread) {
    for (int64_t i = next++; i < num_tasks; i = next++) {
      AttentionTask task = base;
      // As a rule the other threads take the tasks in between.
      const int64_t coming = i + pool_.num_threads();
      if (coming < num_tasks) {
        task.coming_keys = first_keys(base, spec, batch, pieces_[coming / heads],
                                      static_cast<int>(coming % heads));
      }
      run_piece(kernels, task, spec, batch, pieces_[i / heads], static_cast<int>(i % heads),
                thread);
      pool_.advance(thread);
    }
  });
}

void CpuBackend::paged_attention(Tensor out, Tensor qkv, const KvCache& cache,
                                 const AttentionParams& params, const ForwardBatch& batch) {
  const KvCacheSpec& spec = cache.spec;
  NANOVLLM_CHECK(qkv.dtype == spec.dtype && out.dtype == spec.dtype);
  NANOVLLM_CHECK(spec.head_dim % 8 == 0 && spec.block_size % kKvTile == 0);
  NANOVLLM_CHECK(params.num_heads % spec.num_kv_heads == 0);
  attention_.run(out, qkv, cache, params, batch);
  if (!params.has_gate) return;
  const int64_t width = out.row_size();
  const int64_t gate = width + int64_t{2} * spec.num_kv_heads * spec.head_dim;
  NANOVLLM_CHECK(qkv.row_size() == gate + width);
  const RowKernels kernels = row_kernels(isa_, out.dtype);
  const auto offset = static_cast<size_t>(gate) * size_of(out.dtype);
  for_rows(pool_, out.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels.times_sigmoid(row_of(out, t), static_cast<char*>(row_of(qkv, t)) + offset, width);
    }
  });
}

}  // namespace nanovllm
