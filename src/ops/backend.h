// The interface that every device implements: memory, weights, and some twenty ops. compile() makes
// a program of a stack of layers; a backend without fused kernels gets one that calls its ops
// (ops/layer_program.h).
//
// Rules for every op
// - Outputs are allocated by the caller; tensors are row-major and in the device's memory.
// - "act" in a shape's comment is the type of the activations: bfloat16 or float32, the model's
//   dtype. Sums are always accumulated in float32. The residual stream is float32 in both cases.
// - Ops on one Backend are issued by one thread, in order. A device may run them asynchronously;
//   synchronize() waits.
// - A row's result depends on that row alone: never on the number of rows, on the other rows, or on
//   the number of threads (always on the CPU; on CUDA with `deterministic`).
// - Wrong shapes are bugs of the caller and end the program (NANOVLLM_CHECK). Faults of memory and
//   device throw Error.
// - With ranks, an op is "collective" if all of them must call it, in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/resource_limits.h"
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

class LinearWeight;

// The embeddings of a vocabulary. Backends that read host memory read the checkpoint's own memory;
// others have a copy on the device, of a table in codes what make_linear() packs.
struct EmbeddingTable {
  // [V,H] act, on the device. Its data is null if the backend reads `host` or `packed`.
  Tensor rows;
  // [V,H], in the checkpoint.
  HostMatrix host;
  // [V,H] of one piece without a bias, for activations like rows.dtype; or null. A tied head may be
  // the same.
  std::shared_ptr<const LinearWeight> packed;
  // Factor of all rows.
  float scale = 1;

  EmbeddingTable() = default;
  // For backends that read host memory, where `table` must be.
  explicit EmbeddingTable(const Tensor& table)
      : rows(table),
        host{.data = table.data,
             .dtype = table.dtype,
             .rows = table.rows(),
             .cols = table.row_size(),
             .row_stride = table.row_size()} {}
};

// Weights in memory that lie in one layout.
struct LayoutUse {
  WeightLayout layout = WeightLayout::kPlain;
  int64_t num_weights = 0;
  int64_t bytes = 0;
  // Matrices that had codes (HostMatrix) and have numbers here.
  int64_t num_decoded = 0;
};

// The weight of y = x W^T + b, in the layout and format of its backend. Made by
// Backend::make_linear or make_linear_of_table.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  // K
  int64_t in_features = 0;
  // N
  int64_t out_features = 0;
  // Memory that it owns, without the bias.
  int64_t bytes = 0;
  DType dtype = DType::kBFloat16;
  // Of most of it.
  WeightLayout layout = WeightLayout::kPlain;
  // Of all its parts; a backend that has one part alone may leave it empty.
  std::vector<LayoutUse> parts_by_layout;
  // How it is stored in memory, for people.
  const char* format = "";
};

// The weights of a mixture of experts, in the layout of its backend. Made by Backend::make_experts.
class ExpertWeights {
 public:
  virtual ~ExpertWeights() = default;
  // Of all weights, without biases.
  int64_t bytes = 0;
  // Of most of them.
  WeightLayout layout = WeightLayout::kPlain;
  // Of all of them; a backend that has one layout alone may leave it empty.
  std::vector<LayoutUse> parts_by_layout;
  // How most of them are stored, for people.
  const char* format = "";
};

// Adds up by layout.
void add_layout(std::vector<LayoutUse>& uses, const LayoutUse& use);
template <typename Weight>
void add_layouts_of(std::vector<LayoutUse>& uses, const Weight& weight) {
  if (weight.parts_by_layout.empty()) add_layout(uses, {weight.layout, 1, weight.bytes});
  for (const LayoutUse& use : weight.parts_by_layout) add_layout(uses, use);
}

// Geometry of one layer's part of the KV cache. The layout inside a block is the backend's own.
struct KvCacheSpec {
  // Of this rank.
  int num_kv_heads = 0;
  // A multiple of 8.
  int head_dim = 0;
  // Tokens; a multiple of 16.
  int block_size = 0;
  DType dtype = DType::kBFloat16;
};

// As the window of a layer that has no keys and values.
inline constexpr int kNoKeys = -1;

// One layer's KV cache: num_blocks * kv_block_bytes(spec) bytes for K and for V together. Layers of
// several groups may share the memory: each block has the KV of one of them.
struct KvCache {
  KvCacheSpec spec;
  void* data = nullptr;
  int64_t num_blocks = 0;
  // Whose block table leads to the layer's KV (ForwardBatch::of_group).
  int group = 0;
};

// Geometry of what one recurrent layer keeps of a sequence. The layout of slots and logs is the
// backend's own.
struct StateSpec {
  // Of this rank.
  int num_key_heads = 0;
  int num_value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  // Taps of the convolution.
  int conv_width = 0;
  // Of activations.
  DType dtype = DType::kBFloat16;

  int64_t num_channels() const {
    return int64_t{2} * num_key_heads * key_dim + int64_t{num_value_heads} * value_dim;
  }
  bool operator==(const StateSpec&) const = default;
};

// Layers whose states have the same geometry.
struct StateGroup {
  StateSpec spec;
  std::vector<int> layers;
};

// Of one layer.
struct StateBytes {
  int64_t slot = 0;
  int64_t log = 0;
};

// One recurrent layer's memory, of so many slots and logs as the numbers in ForwardBatch need.
struct StateCache {
  StateSpec spec;
  void* slots = nullptr;
  void* logs = nullptr;
};

struct AttentionParams {
  // Query heads of this rank; a multiple of num_kv_heads.
  int num_heads = 0;
  // Multiplies q.k, usually 1/sqrt(head_dim).
  float scale = 0;
  // Sliding window: a query sees its own token and the window - 1 tokens before; 0 = all.
  int window = 0;
  // s <- soft_cap * tanh(s / soft_cap); 0 = none.
  float soft_cap = 0;
  // [num_heads] or null: a further score per head, which takes part in the softmax but has no value
  // to add.
  const float* sinks = nullptr;
  // A row has a gate behind v, num_heads * head_dim wide: out is multiplied by its sigmoid.
  bool has_gate = false;
};

// See GatedDelta for the meaning; all of it in device memory.
struct GatedDeltaParams {
  // [conv_width, channels]
  const float* conv_weight = nullptr;
  // [num_value_heads]
  const float* decay = nullptr;
  const float* dt_bias = nullptr;
  // [value_dim]
  const float* out_norm = nullptr;
  float eps = 0;
  float beta_scale = 1;
  bool key_heads_take_turns = false;
};

struct RopeParams {
  // [head_dim] weights of the RMSNorm of each query head and of each key head; null = no norm.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_eps = 0;
  // [max_positions, rotary_dim] float32: the first half of a row is cos, the second half sin.
  // Element i of a head is rotated with element i + rotary_dim/2 (NeoX pairing). rotary_dim <=
  // head_dim; 0 = nothing is rotated.
  Tensor cos_sin;
  int rotary_dim = 0;
};

// RMSNorm over all heads of q together, and over all heads of k.
struct HeadsNormParams {
  // [q_width] and [k_width], of this rank's heads; null = no norm.
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  // Multiples of 8.
  int q_width = 0, k_width = 0;
  float eps = 0;
};

// Recorded ops that can be run again as a whole, on the data that is at the same addresses then.
class Graph {
 public:
  virtual ~Graph() = default;
};

// RMSNorm as part of another op.
struct NormParams {
  // [H]
  const float* weight = nullptr;
  float eps = 0;
};

// What models and runners need to know of a backend.
struct BackendTraits {
  // It uses the host's memory (CPU): embeddings are read from the mapped checkpoint, and free
  // memory is shared with other programs and other ranks.
  bool shares_host_memory = false;
  // Its products take weights in their codes (HostMatrix::codes).
  bool computes_with_codes = false;
  // A step can be enqueued while another one runs, and memory is allocated before the first step.
  bool is_asynchronous = false;
  // Rows of logits that are computed and sampled in one call, at most; 0 = any number.
  int max_logits_rows = 0;
};

// What a device does a second at its peak with layers of one type and geometry. They are figures of
// the device, never measured, so that they are the same with each run; 0 = nobody knows.
struct DeviceSpeed {
  // Floating-point operations of products with weights.
  double flops = 0;
  // The same of prompts' attention, in the kernel that computes it.
  double attention_flops = 0;
  // Bytes that its memory delivers.
  double bytes = 0;
};

// What layers keep of the tokens before, by layer: each has an entry in the list of its kind. A
// list may end behind the last layer of its kind.
struct LayerCaches {
  std::span<const KvCache> kv;
  std::span<const StateCache> states = {};
};

// How a program is to be made.
struct CompileLimits {
  // Of weights and activations.
  DType dtype = DType::kBFloat16;
  // Rows of the largest step.
  int max_num_tokens = 0;
  // Threads that pack weights, at most.
  int num_threads = 1;
};

// What computes one part of some layers, for people and for tests.
struct PathChoice {
  int first_layer = 0, num_layers = 0;
  // "tail"; of the head there are no layers.
  std::string part;
  // It is for more rows than the choice before it, up to this number; 0 = no limit.
  int max_rows = 0;
  // "op by op"
  std::string path;

  bool operator==(const PathChoice&) const = default;
};
// "layers 0 to 27, tail, up to 8 rows: one kernel"
std::string to_string(const PathChoice& choice);

// A stack of layers as its backend computes it; owns the packed weights and its scratch.
class StackProgram {
 public:
  virtual ~StackProgram() = default;
  // Computes the layers and stores their keys and values; residual[T,H] float32 is changed. Returns
  // the final norm of the rows whose logits are wanted, [num_logits, H] act; or, of a stack without
  // a final norm (which has no logits), the residual of all tokens. The result is valid until the
  // next call. A second run of the same shape does not allocate, copy from or to the host, or wait:
  // it may be recorded in a graph.
  virtual Tensor run(const ForwardBatch& batch, const LayerCaches& caches, Tensor residual) = 0;
  virtual std::vector<PathChoice> plan() const = 0;
  // Of all matrices.
  virtual int64_t weight_bytes() const = 0;
  virtual std::vector<LayoutUse> weight_layouts() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // For people, e.g. "cpu (avx512_bf16, 2 threads)".
  virtual std::string description() const = 0;
  // EngineInfo::device_type
  virtual std::string device_type() const = 0;
  virtual BackendTraits traits() const = 0;
  // Before a thread issues ops that is not the one that issued the last ones, or made the backend.
  virtual void enter_thread() {}
  // With layers that have such a KV cache, and weights and activations of its type.
  virtual DeviceSpeed speed(const KvCacheSpec& /*spec*/) const { return {}; }

  // Memory. allocate() gives zeroed memory aligned to 64 bytes, or throws Error(kOutOfMemory)
  // saying needed and free bytes. On the CPU untouched pages cost nothing.
  virtual MemoryInfo memory() const = 0;
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  // The host's bytes may be changed or freed when it returns. Several threads may call it at the
  // same time.
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  // Waits until the bytes are there.
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Zeroed host memory that stage_batch() reads.
  virtual std::unique_ptr<Buffer> allocate_staging(size_t bytes) = 0;
  // device[0, count) = host[0, count); `host` is in staging memory and must not change before the
  // device has read it. The first num_token_ids elements are token ids. A negative one, -1 - r, is
  // pending: the host does not know it yet, and it becomes max(previous_ids[r], 0). previous_ids is
  // device memory; it may be null if no id is pending.
  virtual void stage_batch(int32_t* device, const int32_t* host, int64_t count,
                           int64_t num_token_ids, const int32_t* previous_ids) = 0;

  // Calls `ops` and records what it issues instead of running it; that may not allocate, copy from
  // or to the host, or wait. If the device has no graphs, returns null and does not call `ops`.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& /*ops*/) { return nullptr; }
  // Runs a graph of this backend, in order with other ops. It is collective if one of its ops is.
  virtual void launch(const Graph& /*graph*/) {}

  // Weights. The pieces are stacked along N (q, k, v; gate, up); bias is null or float32 [N] in
  // host memory. Their memory may be unmapped after the call. Several threads may call it at the
  // same time.
  virtual std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces,
                                                    const float* bias, DType dtype) = 0;
  // The same for a mixture of experts, for steps of up to max_num_tokens rows. Throws
  // Error(kUnsupported) if the backend does not compute them.
  virtual std::unique_ptr<ExpertWeights> make_experts(const Experts& experts, DType dtype,
                                                      int max_num_tokens);
  // The weight of y = x table^T that uses the table's own memory, which must live longer. table is
  // [N,K] act and may be filled in later. Null if the backend needs a layout of its own: then
  // make_linear() it is.
  virtual std::unique_ptr<LinearWeight> make_linear_of_table(Tensor /*table*/) { return nullptr; }

  // Throws Error(kUnsupported) for a kind of layer that this backend does not compute. It reads no
  // weights: to be called before any are packed.
  virtual void check(const StackSpec& /*spec*/) const {}
  // Packs the weights of a stack that check() takes and chooses how each layer is computed.
  // Collective. Throws Error(kUnsupported) where make_experts() does.
  virtual std::unique_ptr<StackProgram> compile(const StackSpec& spec, const CompileLimits& limits);

  // To be called when all weights have been made: frees what only that needed.
  virtual void finish_loading() {}

  // Bytes for the keys and the values of one block of one layer, together.
  virtual size_t kv_block_bytes(const KvCacheSpec& spec) const = 0;
  // Of a recurrent layer that check() takes.
  virtual StateBytes state_bytes(const StateSpec& spec) const;

  // out[T,H] (float32) = table[ids[t] - first_id] * table.scale, both the row and the product
  // rounded to act (table.rows.dtype). A rank's part of a vocabulary begins at first_id; ids
  // outside of it give zeros.
  virtual void embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                         int32_t first_id) = 0;
  // out[T,H] (act) = x / sqrt(mean(x^2) + eps) * weight; x[T,H] float32 or act, weight float32 [H].
  // If weight is null, out = x.
  virtual void rms_norm(Tensor out, Tensor x, const float* weight, float eps) = 0;
  // residual[T,H] (float32) += scale * x[T,H] (act); then out = rms_norm(residual).
  virtual void add_rms_norm(Tensor out, Tensor residual, Tensor x, float scale, const float* weight,
                            float eps) = 0;
  // out[T,N] (act or float32) = x[T,K] (act) W^T + b.
  virtual void linear(Tensor out, Tensor x, const LinearWeight& weight) = 0;
  // What linear() takes for this weight and results of this type, by rows: choices of no layer and
  // part. None where it has no choice.
  virtual std::vector<PathChoice> linear_paths(const LinearWeight& /*weight*/,
                                               DType /*out*/) const {
    return {};
  }
  // RMSNorm of q over all its heads together, and of k, in place in qkv[T, (Hq + 2 Hkv) * D] (act).
  // The heads of all ranks count: collective. means[T, 2] (float32) is scratch.
  virtual void norm_all_heads(Tensor qkv, Tensor means, const HeadsNormParams& norm) = 0;
  // qkv[T, (Hq + 2 Hkv) * D, or more] (act): normalises q and k per head if rope has weights for
  // it, rotates them by their positions, writes q back, and k and v into the cache at slot_mapping.
  virtual void qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope,
                                  const KvCache& cache, const ForwardBatch& batch) = 0;
  // out[T, Hq * D] (act) = softmax(scale q K^T, causal) V (times the gate's sigmoid) over the
  // sequence's blocks; q is as qk_norm_rope_store left it. A token at position p sees positions
  // 0..p (or those of the window). Grouped queries: head h reads KV head h / (Hq / Hkv).
  virtual void paged_attention(Tensor out, Tensor qkv, const KvCache& cache,
                               const AttentionParams& params, const ForwardBatch& batch) = 0;
  // qk_norm_rope_store, then paged_attention. A backend may do both in one pass; qkv must not be
  // read afterwards.
  virtual void store_and_attend(Tensor out, Tensor qkv, const RopeParams& rope,
                                const KvCache& cache, const AttentionParams& params,
                                const ForwardBatch& batch) {
    qk_norm_rope_store(qkv, params.num_heads, rope, cache, batch);
    paged_attention(out, qkv, cache, params, batch);
  }
  // out[T, Hv * Dv] (act) = GatedDelta of in[T, q, k, v, z, b, a] (act), whose rows before these
  // are in the cache; updates it. k and q are rounded to act once they are normed. The sums of a
  // row are taken in one order: over the state's elements with k's and q's ascending, then over the
  // chunk's rows ascending.
  virtual void gated_delta(Tensor out, Tensor in, const GatedDeltaParams& params,
                           const StateCache& cache, const ForwardBatch& batch);
  // out[T,I] (act) = activation(gate) * up of gate_up[T, 2I] (act): gate is the first half of a
  // row.
  virtual void act_and_mul(Tensor out, Tensor gate_up, Activation activation) = 0;
  // out[T,H] (act) = this rank's summand of the mixture of experts of x[T,H] (act). The device
  // chooses the experts. The order in which a row's sum is taken depends on that row alone.
  virtual void experts(Tensor out, Tensor x, ExpertWeights& weights);
  // logits (float32) = cap * tanh(logits / cap).
  virtual void soft_cap(Tensor logits, float cap) = 0;
  // out[R,H] = x[rows[r]], same dtype.
  virtual void gather_rows(Tensor out, Tensor x, const int32_t* rows) = 0;

  // Ranks: a backend is alone until it joins a tensor-parallel group (ops/communicator.h). Then the
  // following are collective. Sums are taken in the order of the ranks and have the same bits on
  // every rank. They throw Error(kInternal) if another rank has failed.
  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  // x = the sum of all ranks' x; act or float32.
  virtual void all_reduce(Tensor /*x*/) {}
  // out[R, world_size * n] = the ranks' x[R, n] side by side. Nothing happens with one rank: `out`
  // must be `x` then.
  virtual void all_gather(Tensor /*out*/, Tensor /*x*/) {}
  // add_rms_norm of the sum of all ranks' x: attention and MLP end with it, and a device may do it
  // in one pass. x may be changed.
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

// make_linear() of a matrix of a spec. Checks before that its file was not cut short; afterwards
// the file's pages no longer count as memory of this process.
std::unique_ptr<LinearWeight> pack_matrix(Backend& backend, const Matrix& matrix, DType dtype);
// make_experts() likewise.
std::unique_ptr<ExpertWeights> pack_experts(Backend& backend, const Experts& experts,
                                            const CompileLimits& limits);

}  // namespace nanovllm
