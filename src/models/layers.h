// The layers that models are put together from. Tensor parallelism lives here: each layer holds its
// rank's share of the weights. What a block (attention or MLP) adds to the residual leaves it as
// this rank's summand, and add_and_norm() adds the ranks up: the residual and what is normalised of
// it are whole and the same on every rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/weight_loader.h"

namespace nanovllm {

// Views of the workspace for one step. T = tokens of the step; from the last layer's output
// projection on, T = rows whose logits are wanted.
struct Activations {
  Tensor residual;   // [T, hidden_size] float32
  Tensor hidden;     // [T, hidden_size] act: what a block reads
  Tensor branch;     // [T, hidden_size] act: this rank's part of what a block adds to the residual
  Tensor qkv;        // [T, (num_heads + 2 num_kv_heads) * head_dim] act, of this rank
  Tensor attention;  // [T, num_heads * head_dim] act
  Tensor gate_up;    // [T, 2 intermediate_size] act
  Tensor mlp;        // [T, intermediate_size] act
};

// What every layer needs to compute a step.
struct Step {
  Backend& backend;
  Communicator& communicator;
  const ForwardBatch& batch;
  Activations x;
};

// This rank's share of a model's sizes. Throws Error(kUnsupported) where the ranks can't share
// them.
struct ShardSizes {
  ShardSizes(const ModelConfig& config, const Communicator& communicator);

  int rank = 0;
  int world_size = 1;
  int num_heads = 0;
  int num_kv_heads = 0;
  int first_kv_head = 0;  // with more ranks than KV heads, neighbours hold the same one
  int intermediate_size = 0;
  // A vocabulary that does not divide is held whole by every rank.
  bool vocab_is_sharded = false;
  int vocab_size = 0;
};

// Token ids to the residual stream.
class Embedding {
 public:
  void load(const ModelContext& context, WeightLoader& loader, const std::string& name);
  void forward(Step& step) const;  // -> residual
  const EmbeddingTable& table() const { return table_; }

 private:
  EmbeddingTable table_;  // [vocab, hidden_size]
  int32_t first_id_ = 0;
  bool is_sharded_ = false;
};

// Hidden states to logits.
class Head {
 public:
  // Tied to an embedding, loaded before and by the same name, it may lie in that one's table.
  void load(const ModelContext& context, WeightLoader& loader, const std::string& name,
            const Embedding* tied);
  // out[R, vocab_size] float32; `shard` is [R, vocab of this rank], the same memory with one rank.
  void forward(Backend& backend, Communicator& communicator, Tensor out, Tensor shard,
               Tensor hidden) const;

 private:
  std::unique_ptr<LinearWeight> weight_;
  bool is_sharded_ = false;
};

struct AttentionOptions {
  bool qk_norm = false;  // RMSNorm of each query and key head before it is turned
  bool qkv_bias = false;
  bool output_bias = false;
  int window = 0;  // tokens a query sees; 0 = all
};

// residual += branch of all ranks; hidden = rms_norm(residual).
void add_and_norm(Step& step, const float* norm, float eps);

// Grouped-query attention over the paged KV cache.
class Attention {
 public:
  void load(const ModelContext& context, WeightLoader& loader, const std::string& name,
            const AttentionOptions& options);
  void read(Step& step) const;  // hidden -> qkv
  // qkv -> keys and values in the cache. `cos_sin` is the rotary table.
  void store(Step& step, const KvCache& cache, Tensor cos_sin) const;
  // The same, and qkv -> attention.
  void attend(Step& step, const KvCache& cache, Tensor cos_sin) const;
  void project(Step& step) const;  // attention -> branch

  // For a tail computed at once.
  const LinearWeight& input_proj() const { return *qkv_proj_; }
  const LinearWeight& output_proj() const { return *o_proj_; }

 private:
  std::unique_ptr<LinearWeight> qkv_proj_;
  std::unique_ptr<LinearWeight> o_proj_;
  RopeParams rope_;
  AttentionParams params_;
};

// down(activation(gate(x)) * up(x)), hidden -> branch.
class Mlp {
 public:
  void load(const ModelContext& context, WeightLoader& loader, const std::string& name, bool bias);
  void forward(Step& step) const;

  // For a tail computed at once.
  const LinearWeight& gate_up_proj() const { return *gate_up_proj_; }
  const LinearWeight& down_proj() const { return *down_proj_; }
  Activation activation() const { return activation_; }

 private:
  std::unique_ptr<LinearWeight> gate_up_proj_;
  std::unique_ptr<LinearWeight> down_proj_;
  Activation activation_ = Activation::kSilu;
};

}  // namespace nanovllm
