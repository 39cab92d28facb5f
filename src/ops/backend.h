// The narrow interface every device implements: memory, weights, and about twenty ops.
//
// Rules that hold for every op
// - Outputs are preallocated; tensors are row-major and live on the backend's device.
// - "act" tensors are bfloat16 or float32 (the model's dtype); accumulation is always float32. The
// residual stream is
//   float32 in both cases.
// - Ops on one Backend are issued by one thread, in order. A device may run them asynchronously;
// synchronize() waits.
// - A row's result depends on that row alone: never on the number of rows, on the other rows, or on
// the number of
//   threads (always on the CPU; on CUDA with `deterministic`).
// - Shapes are the caller's duty (NANOVLLM_CHECK): no op throws for bad input, memory and device
// faults throw Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/forward_batch.h"
#include "ops/host_matrix.h"
#include "ops/sampling.h"
#include "ops/tensor.h"

namespace nanovllm {

// Device memory that frees itself.
class Buffer {
 public:
  virtual ~Buffer() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct MemoryInfo {
  int64_t free_bytes = 0;  // what this process may still take, under all limits
  int64_t total_bytes = 0;
  // Which limit leaves less than the machine has, for messages: " (ulimit -v)". Empty = none.
  std::string limit = {};
};

// The embeddings of a vocabulary. Backends that read host memory read the checkpoint's own; others
// have a copy.
struct EmbeddingTable {
  Tensor rows;      // [V,H] of act dtype on the device; without memory where `host` is read
  HostMatrix host;  // [V,H]

  EmbeddingTable() = default;
  // Of host memory.
  explicit EmbeddingTable(const Tensor& table)
      : rows(table),
        host{.data = table.data,
             .dtype = table.dtype,
             .rows = table.rows(),
             .cols = table.row_size(),
             .row_stride = table.row_size()} {}
};

// The weight of y = x W^T + b in the layout, dtype and quantisation its backend likes. Made by
// Backend::make_linear or make_linear_of_table.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  int64_t in_features = 0;   // K
  int64_t out_features = 0;  // N
  int64_t bytes = 0;         // of memory of its own, the bias aside
  DType dtype = DType::kBFloat16;
};

// Geometry of one layer's share of the KV cache. The layout inside a block is the backend's own.
struct KvCacheSpec {
  int num_kv_heads = 0;  // of this rank
  int head_dim = 0;      // a multiple of 8
  int block_size = 0;    // tokens; a multiple of 16
  DType dtype = DType::kBFloat16;
};

// Layers whose shares of the KV cache have one geometry. All groups of a model have one block
// table: a block holds the keys and values of its tokens for every layer.
struct KvCacheGroup {
  KvCacheSpec spec;
  std::vector<int> layers;
};

// One layer's KV cache: num_blocks * kv_block_bytes(spec) bytes for K and for V together.
struct KvCache {
  KvCacheSpec spec;
  void* data = nullptr;
  int64_t num_blocks = 0;
};

struct AttentionParams {
  int num_heads = 0;  // query heads of this rank; a multiple of num_kv_heads
  float scale = 0;    // multiplies q.k, usually 1/sqrt(head_dim)
  int window = 0;  // sliding window: a query sees its own and the window-1 tokens before; 0 = all
  float soft_cap = 0;  // s <- soft_cap * tanh(s / soft_cap); 0 = none
};

struct RopeParams {
  const float* q_norm = nullptr;  // [head_dim] RMSNorm weight per query head, or none
  const float* k_norm = nullptr;  // [head_dim]
  float norm_eps = 0;
  // [max_positions, rotary_dim] of float32: the first half of a row is cos, the second half sin
  // (NeoX pairing: element i turns with element i + rotary_dim/2). rotary_dim <= head_dim.
  Tensor cos_sin;
  int rotary_dim = 0;
};

// Ops recorded once, to be run again as one: at the same addresses, on what is there by then.
class Graph {
 public:
  virtual ~Graph() = default;
};

// RMSNorm as part of another op.
struct NormParams {
  const float* weight = nullptr;  // float32 [H]
  float eps = 0;
  float offset = 0;  // added to the weight
};

enum class Activation { kSilu, kGelu, kGeluTanh };

// What a layer does between its attention and the next layer's:
//   residual += output_proj(attention)
//   residual += down_proj(activation(gate) * up), gate and up = gate_up_proj(norm(residual))
//   out = next_proj(next_norm(residual)), or the norm alone after the last layer.
struct LayerTail {
  const LinearWeight* output_proj = nullptr;
  NormParams norm;
  const LinearWeight* gate_up_proj = nullptr;
  Activation activation = Activation::kSilu;
  const LinearWeight* down_proj = nullptr;
  NormParams next_norm;
  const LinearWeight* next_proj = nullptr;  // or none
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description() const = 0;  // for people, e.g. "cpu (avx512_bf16, 2 threads)"
  virtual bool is_cpu() const = 0;

  // Memory. allocate() gives zeroed memory aligned to 64 bytes, or throws Error(kOutOfMemory)
  // saying needed and free bytes. On the CPU untouched pages cost nothing.
  virtual MemoryInfo memory() const = 0;
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  // `host` may change or go when upload() returns; several threads may call it at once.
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Zeroed host memory that stage_batch() reads.
  virtual std::unique_ptr<Buffer> allocate_staging(size_t bytes) = 0;
  // device[0, count) = host[0, count), where `host` lies in staging memory and must not change
  // before the device is done. The first num_token_ids are token ids: one of -1 - r, unknown to the
  // host as yet, becomes previous_ids[r], or 0 where that is negative. previous_ids is device
  // memory; null when there are none of these.
  virtual void stage_batch(int32_t* device, const int32_t* host, int64_t count,
                           int64_t num_token_ids, const int32_t* previous_ids) = 0;

  // Records the ops that `ops` issues instead of running them; they may not allocate, copy from or
  // to the host, or wait. Null where the device has no graphs: nothing was called then.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& /*ops*/) { return nullptr; }
  // Runs a graph of this backend, in order with other ops.
  virtual void launch(const Graph& /*graph*/) {}

  // Lanes. A device may compute two halves of a step of decodes side by side, one's attention
  // beside the other's products. The smallest step that gains by it, in tokens, if a layer has so
  // many bytes of weights, which each half reads; 0 = none.
  virtual int min_lane_tokens(int64_t /*layer_bytes*/) const { return 0; }
  // From begin_lanes() to end_lanes() ops belong to the lane that use_lane() chose last, 0 or 1, at
  // first 0. A lane's ops run in order, behind all before begin_lanes() and ahead of all behind
  // end_lanes(); ops of different lanes may run at once, and so must not share memory. Only ops of
  // layers may lie in between: no memory, graphs or sampling.
  virtual void begin_lanes() {}
  virtual void use_lane(int /*lane*/) {}
  virtual void end_lanes() {}

  // Weights. The pieces are stacked along N (q, k, v; gate, up); bias is null or float32 [N] in
  // host memory. Sources may be unmapped after the call. May be called by several threads at once.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces,
                                                    const float* bias, DType dtype) = 0;
  // The weight of y = x table^T in the table's own memory, which outlives it; table is [N,K] of act
  // dtype, and may be filled in later. Null where the backend wants a layout of its own, as
  // make_linear() has it.
  virtual std::unique_ptr<LinearWeight> make_linear_of_table(Tensor /*table*/) { return nullptr; }

  // All weights have been made: frees what only their making needed.
  virtual void finish_loading() {}

  // KV cache.
  virtual size_t kv_block_bytes(
      const KvCacheSpec& spec) const = 0;  // K and V of one block of one layer

  // out[T,H] (float32) = table[ids[t] - first_id], rounded to the act dtype (table.rows.dtype). Ids
  // outside the table give zeros: a vocabulary shard starts at first_id.
  virtual void embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                         int32_t first_id) = 0;
  // out[T,H] (act) = x / sqrt(mean(x^2) + eps) * (offset + weight); x[T,H] float32, weight float32
  // [H].
  virtual void rms_norm(Tensor out, Tensor x, const float* weight, float eps, float offset) = 0;
  // residual[T,H] (float32) += x[T,H] (act); then out = rms_norm(residual).
  virtual void add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight, float eps,
                            float offset) = 0;
  // out[T,N] (act or float32) = x[T,K] (act) W^T + b.
  virtual void linear(Tensor out, Tensor x, const LinearWeight& weight) = 0;
  // qkv[T, (Hq + 2 Hkv) * D] (act): normalises q and k per head where asked, turns them by their
  // positions, writes q back and k and v into the cache at slot_mapping.
  virtual void qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope,
                                  const KvCache& cache, const ForwardBatch& batch) = 0;
  // out[T, Hq * D] (act) = softmax(scale q K^T, causal) V over the sequence's blocks; q as
  // qk_norm_rope_store left it. A token at position p sees positions 0..p (or the window's).
  // Grouped queries: head h reads KV head h / (Hq / Hkv).
  virtual void paged_attention(Tensor out, Tensor qkv, const KvCache& cache,
                               const AttentionParams& params, const ForwardBatch& batch) = 0;
  // qk_norm_rope_store, then paged_attention. A backend may do both in one pass; the q, k and v of
  // qkv are nobody's afterwards.
  virtual void store_and_attend(Tensor out, Tensor qkv, const RopeParams& rope,
                                const KvCache& cache, const AttentionParams& params,
                                const ForwardBatch& batch) {
    qk_norm_rope_store(qkv, params.num_heads, rope, cache, batch);
    paged_attention(out, qkv, cache, params, batch);
  }
  // out[T,I] (act) = activation(gate) * up of gate_up[T, 2I] (act): gate is the first half of a
  // row.
  virtual void act_and_mul(Tensor out, Tensor gate_up, Activation activation) = 0;
  // The tail of a layer at once, where this device and this number of rows gain by it; otherwise
  // returns false, having done nothing, and the caller takes the steps one by one. residual[T,H]
  // float32, attention[T, Hq * D] and out act; mlp[T,I] act is for the device's use. `out` and
  // `mlp` may lie over `attention`, and over each other.
  virtual bool layer_tail(Tensor /*out*/, Tensor /*residual*/, Tensor /*attention*/, Tensor /*mlp*/,
                          const LayerTail&) {
    return false;
  }
  // out[R,H] = x[rows[r]], same dtype.
  virtual void gather_rows(Tensor out, Tensor x, const int32_t* rows) = 0;

  // Sampling: see ops/sampling.h. logits[R,V] float32 may be changed. sampled_ids[R], device memory
  // or null, receives each row's token_id. previous_ids is device memory that the rows with a
  // pending token point into; it may be null when there are none, and may not overlap sampled_ids.
  // `rows` and all that they refer to is read before the call returns.
  virtual std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                                 int32_t* sampled_ids,
                                                 const int32_t* previous_ids) = 0;
};

}  // namespace nanovllm
