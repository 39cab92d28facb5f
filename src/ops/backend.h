// The narrow interface every device implements: memory, weights, and about twenty ops.
//
// Rules that hold for every op
// - Outputs are preallocated; tensors are row-major and live on the backend's device.
// - "act" tensors are bfloat16 or float32 (the model's dtype); accumulation is always float32. The
//   residual stream is float32 in both cases.
// - Ops on one Backend are issued by one thread, in order. A device may run them asynchronously;
//   synchronize() waits.
// - A row's result depends on that row alone: never on the number of rows, on the other rows, or on
//   the number of threads (always on the CPU; on CUDA with `deterministic`).
// - Shapes are the caller's duty (NANOVLLM_CHECK): no op throws for bad input, memory and device
//   faults throw Error.
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
#include "ops/layer_spec.h"
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
  float scale = 1;  // that its rows are multiplied by

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
  const char* format = "";  // as it lies in memory, for people
};

// A mixture of experts as its backend likes it. Made by Backend::make_experts.
class ExpertWeights {
 public:
  virtual ~ExpertWeights() = default;
  int64_t bytes = 0;        // of all weights, biases aside
  const char* format = "";  // of most of them, for people
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
  float soft_cap = 0;            // s <- soft_cap * tanh(s / soft_cap); 0 = none
  const float* sinks = nullptr;  // [num_heads], a score each that has no value; or none
};

struct RopeParams {
  const float* q_norm = nullptr;  // [head_dim] RMSNorm weight per query head, or none
  const float* k_norm = nullptr;  // [head_dim]
  float norm_eps = 0;
  // [max_positions, rotary_dim] of float32: the first half of a row is cos, the second half sin
  // (NeoX pairing: element i turns with element i + rotary_dim/2). rotary_dim <= head_dim; where it
  // is 0, nothing turns.
  Tensor cos_sin;
  int rotary_dim = 0;
};

// RMSNorm of all heads of q at once, and of all heads of k.
struct HeadsNormParams {
  const float* q_weight = nullptr;  // [q_width], of this rank's heads, or none
  const float* k_weight = nullptr;  // [k_width]
  int q_width = 0, k_width = 0;     // multiples of 8
  float eps = 0;
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
};

// What models and runners need to know of a backend.
struct BackendTraits {
  // Its memory is the host's: tables are read where the checkpoint has them, and what is free is
  // the machine's to share.
  bool shares_host_memory = false;
  // Steps run while the next ones are enqueued, and memory is allocated ahead of the first.
  bool is_asynchronous = false;
  int max_logits_rows = 0;  // to be computed and sampled at a time; 0 = any number
};

// How a program is to be made.
struct CompileLimits {
  DType dtype = DType::kBFloat16;  // of weights and activations
  int max_num_tokens = 0;          // rows of the largest step
  int num_threads = 1;             // that pack weights, at most
};

// What computes one part of some layers, for people and for tests.
struct PathChoice {
  int first_layer = 0, num_layers = 0;
  std::string part;  // "tail"
  int max_rows = 0;  // the rows from the choice before this one up to these; 0 = any more
  std::string path;  // "op by op"

  bool operator==(const PathChoice&) const = default;
};
// "layers 0 to 27, tail, up to 8 rows: one kernel"
std::string to_string(const PathChoice& choice);

// A stack of layers as its backend computes it; owns the packed weights and its scratch.
class StackProgram {
 public:
  virtual ~StackProgram() = default;
  // Computes the layers and stores their keys and values; residual[T,H] float32 is changed. Returns
  // the normed rows of the logits, [num_logits, H] act; in a stage without a final norm, the
  // residual of all tokens. It is valid until the next call. A second run of an equal shape
  // allocates, copies and waits for nothing, and so may be recorded in a graph.
  virtual Tensor run(const ForwardBatch& batch, std::span<const KvCache> caches,
                     Tensor residual) = 0;
  virtual std::vector<PathChoice> plan() const = 0;
  virtual int64_t weight_bytes() const = 0;  // of the projections
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description() const = 0;  // for people, e.g. "cpu (avx512_bf16, 2 threads)"
  virtual BackendTraits traits() const = 0;

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
  // Runs a graph of this backend, in order with other ops; with collective ops in it, on all ranks
  // at once.
  virtual void launch(const Graph& /*graph*/) {}

  // Weights. The pieces are stacked along N (q, k, v; gate, up); bias is null or float32 [N] in
  // host memory. Sources may be unmapped after the call. May be called by several threads at once.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces,
                                                    const float* bias, DType dtype) = 0;
  // Of a mixture of experts for steps of up to max_num_tokens rows; to be used as make_linear().
  // Throws Error(kUnsupported) where the backend has none.
  virtual std::unique_ptr<ExpertWeights> make_experts(const Experts& experts, DType dtype,
                                                      int max_num_tokens);
  // The weight of y = x table^T in the table's own memory, which outlives it; table is [N,K] of act
  // dtype, and may be filled in later. Null where the backend wants a layout of its own, as
  // make_linear() has it.
  virtual std::unique_ptr<LinearWeight> make_linear_of_table(Tensor /*table*/) { return nullptr; }

  // Packs the weights and chooses how each layer is computed. Ranks of a group call it together.
  // Throws Error(kUnsupported) for a layer of a kind that this backend does not compute.
  virtual std::unique_ptr<StackProgram> compile(const StackSpec& spec, const CompileLimits& limits);

  // All weights have been made: frees what only their making needed.
  virtual void finish_loading() {}

  // Of the keys and the values of one block of one layer, together.
  virtual size_t kv_block_bytes(const KvCacheSpec& spec) const = 0;

  // out[T,H] (float32) = table[ids[t] - first_id] * table.scale, row and product rounded to the act
  // dtype (table.rows.dtype). Ids outside the table give zeros: a vocabulary shard starts at
  // first_id.
  virtual void embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                         int32_t first_id) = 0;
  // out[T,H] (act) = x / sqrt(mean(x^2) + eps) * weight; x[T,H] float32 or act, weight float32 [H],
  // or null: out = x.
  virtual void rms_norm(Tensor out, Tensor x, const float* weight, float eps) = 0;
  // residual[T,H] (float32) += scale * x[T,H] (act); then out = rms_norm(residual).
  virtual void add_rms_norm(Tensor out, Tensor residual, Tensor x, float scale, const float* weight,
                            float eps) = 0;
  // out[T,N] (act or float32) = x[T,K] (act) W^T + b.
  virtual void linear(Tensor out, Tensor x, const LinearWeight& weight) = 0;
  // Normalises q and k of qkv[T, (Hq + 2 Hkv) * D] (act) in place, each over its heads of all
  // ranks: collective. means[T, 2] (float32) is scratch.
  virtual void norm_all_heads(Tensor qkv, Tensor means, const HeadsNormParams& norm) = 0;
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
  // out[T,H] (act) = this rank's summand of the mixture of x[T,H] (act). The choice is made on the
  // device. A row's sum has an order of its own.
  virtual void experts(Tensor out, Tensor x, ExpertWeights& weights);
  // logits (float32) = cap * tanh(logits / cap).
  virtual void soft_cap(Tensor logits, float cap) = 0;
  // out[R,H] = x[rows[r]], same dtype.
  virtual void gather_rows(Tensor out, Tensor x, const int32_t* rows) = 0;

  // Ranks: a backend is alone until it joins a tensor-parallel group (ops/communicator.h). The ops
  // below are collective then: every rank calls the same ones in the same order. Sums are taken in
  // the order of the ranks and are the same bits on every rank. They throw Error(kInternal) when
  // another rank has failed.
  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  // x becomes the sum of all ranks' x; act or float32.
  virtual void all_reduce(Tensor /*x*/) {}
  // out[R, world_size * n] = the ranks' x[R, n] side by side; alone, `out` is `x`.
  virtual void all_gather(Tensor /*out*/, Tensor /*x*/) {}
  // add_rms_norm of the sum of all ranks' x, which is how every block of a layer ends: a device may
  // do it in one pass. x may be changed.
  virtual void all_reduce_add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight,
                                       float eps) {
    all_reduce(x);
    add_rms_norm(out, residual, x, 1, weight, eps);
  }

  // Sampling: see ops/sampling.h. logits[R,V] float32 may be changed. sampled_ids[R], device memory
  // or null, receives each row's token_id. previous_ids is device memory that the rows with a
  // pending token point into; it may be null when there are none, and may not overlap sampled_ids.
  // `rows` and all that they refer to is read before the call returns.
  virtual std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                                 int32_t* sampled_ids,
                                                 const int32_t* previous_ids) = 0;
};

// make_linear() of a matrix of a spec. Its file is checked before the matrix is read; behind it,
// the file's pages stop counting as memory of this process.
std::unique_ptr<LinearWeight> pack_matrix(Backend& backend, const Matrix& matrix, DType dtype);
// make_experts() likewise.
std::unique_ptr<ExpertWeights> pack_experts(Backend& backend, const Experts& experts,
                                            const CompileLimits& limits);

}  // namespace nanovllm
