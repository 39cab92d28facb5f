// The layers that models are put together from. Tensor parallelism lives here: each layer gets its
// rank's share of the weights. What a block (attention or MLP) adds to the residual leaves it as
// this rank's summand, and its program adds the ranks up: the residual and what is normalised of it
// are whole and the same on every rank.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/weight_loader.h"

namespace nanovllm {

// This rank's share of a model's sizes. Throws Error(kUnsupported) where the ranks can't share
// them.
struct ShardSizes {
  ShardSizes(const ModelConfig& config, const Backend& backend);

  int rank = 0;
  int world_size = 1;
  int num_heads = 0;
  int num_kv_heads = 0;
  int first_kv_head = 0;  // with more ranks than KV heads, neighbours hold the same one
  // A vocabulary that does not divide is held whole by every rank.
  bool vocab_is_sharded = false;
  int vocab_size = 0;
};

// Token ids to the residual stream.
class Embedding {
 public:
  void load(const ModelContext& context, WeightLoader& loader, const std::string& name,
            float scale);
  void forward(Backend& backend, Tensor residual, const int32_t* token_ids) const;
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
  void forward(Backend& backend, Tensor out, Tensor shard, Tensor hidden) const;

 private:
  std::unique_ptr<LinearWeight> weight_;
  bool is_sharded_ = false;
};

// A norm's NAME.weight + offset.
Norm load_norm(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t size, float offset);

// RMSNorm of queries and keys before they are turned: of each head, or of all heads at once.
enum class QkNorm { kNone, kEachHead, kAllHeads };

struct AttentionOptions {
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool output_bias = false;
  bool fused_qkv = false;         // one NAME.qkv_proj
  bool turns_neighbours = false;  // rows of q and k are for a rotation of neighbours
  int window = 0;                 // tokens a query sees; 0 = all
  int rotary_table = 0;
  float norm_offset = 0;    // added to the norms' weights
  double query_scalar = 0;  // queries are divided by its root; 0 = head_dim
  float soft_cap = 0;       // of the scores; 0 = none
  bool has_sinks = false;
};

// NAME.q_proj, k_proj, v_proj and o_proj: `in`, core and `out` of a layer.
void load_attention(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                    const std::string& name, const AttentionOptions& options);

// NAME.gate_proj and up_proj, or one gate_up_proj, and down_proj: down(activation(gate(x)) *
// up(x)).
Dense load_mlp(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t width, bool bias, bool is_fused);

struct ExpertOptions {
  std::string block = "mlp";
  std::string router = "gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string gate_up = "gate_up_proj";       // of both in one stack, where that is there
  bool has_biases = false;                    // the router, gate, up and down
  std::optional<Activation> activation = {};  // instead of the config's
  std::string shared = "shared_expert";
  bool has_shared_gate = false;
  bool has_correction = false;  // of the choice
  Routing::Score score = Routing::Score::kSoftmax;
};

// NAME.gate, and NAME.experts.I.gate_proj, up_proj and down_proj of each expert, or
// NAME.experts.gate_proj of all in one stack of matrices. What there is besides stands in the
// config.
Experts load_experts(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     const ExpertOptions& options);

}  // namespace nanovllm
