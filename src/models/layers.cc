#include "models/layers.h"

#include <cmath>

#include "base/check.h"

namespace nanovllm {
namespace {

void refuse_ranks(const ModelConfig& config, const char* what, int count, int world_size) {
  throw_error(ErrorCode::kUnsupported,
              "{}: the {} {} can't be shared by tensor_parallel_size {}; choose one that divides "
              "them",
              config.model_dir, count, what, world_size);
}

// Columns split: every rank multiplies its part of the input, and the products are summed.
MatrixSlice split_columns(const std::string& name, int64_t rows, int64_t cols,
                          const ShardSizes& sizes) {
  MatrixSlice slice = MatrixSlice::whole(name, rows, cols);
  slice.col_begin = cols * sizes.rank / sizes.world_size;
  slice.col_end = cols * (sizes.rank + 1) / sizes.world_size;
  return slice;
}

// Rows split: every rank computes a part of the output.
MatrixSlice split_rows(const std::string& name, int64_t rows, int64_t cols,
                       const ShardSizes& sizes) {
  MatrixSlice slice = MatrixSlice::whole(name, rows, cols);
  slice.row_begin = rows * sizes.rank / sizes.world_size;
  slice.row_end = rows * (sizes.rank + 1) / sizes.world_size;
  return slice;
}

MatrixSlice vocabulary_slice(const std::string& name, const ModelConfig& config,
                             const ShardSizes& sizes) {
  return sizes.vocab_is_sharded ? split_rows(name, config.vocab_size, config.hidden_size, sizes)
                                : MatrixSlice::whole(name, config.vocab_size, config.hidden_size);
}

Activation parse_activation(const ModelConfig& config) {
  if (config.hidden_act == "silu") return Activation::kSilu;
  if (config.hidden_act == "gelu") return Activation::kGelu;
  if (config.hidden_act == "gelu_new" || config.hidden_act == "gelu_pytorch_tanh") {
    return Activation::kGeluTanh;
  }
  throw_error(ErrorCode::kUnsupported,
              "{}: hidden_act \"{}\" is not supported, only silu, gelu, gelu_new and "
              "gelu_pytorch_tanh",
              config.config_path, config.hidden_act);
}

}  // namespace

ShardSizes::ShardSizes(const ModelConfig& config, const Communicator& communicator)
    : rank(communicator.rank()), world_size(communicator.world_size()) {
  const int heads = config.num_attention_heads;
  const int kv_heads = config.num_key_value_heads;
  if (heads % world_size != 0) refuse_ranks(config, "attention heads", heads, world_size);
  if (kv_heads % world_size != 0 && world_size % kv_heads != 0) {
    refuse_ranks(config, "key-value heads", kv_heads, world_size);
  }
  if (config.intermediate_size % world_size != 0) {
    refuse_ranks(config, "rows of intermediate_size", config.intermediate_size, world_size);
  }
  num_heads = heads / world_size;
  num_kv_heads = std::max(1, kv_heads / world_size);
  first_kv_head = static_cast<int>(int64_t{kv_heads} * rank / world_size);
  intermediate_size = config.intermediate_size / world_size;
  vocab_is_sharded = world_size > 1 && config.vocab_size % world_size == 0;
  vocab_size = vocab_is_sharded ? config.vocab_size / world_size : config.vocab_size;
}

void Embedding::load(const ModelContext& context, WeightLoader& loader, const std::string& name) {
  const ShardSizes sizes(context.config, context.communicator);
  const MatrixSlice slice = vocabulary_slice(name, context.config, sizes);
  loader.table(&table_, slice);
  first_id_ = static_cast<int32_t>(slice.row_begin);
  is_sharded_ = sizes.vocab_is_sharded;
}

void Embedding::forward(Step& step) const {
  step.backend.embedding(step.x.residual, step.batch.token_ids, table_, first_id_);
  if (is_sharded_) step.communicator.all_reduce(step.x.residual);
}

void Head::load(const ModelContext& context, WeightLoader& loader, const std::string& name,
                const Embedding* tied) {
  const ShardSizes sizes(context.config, context.communicator);
  const MatrixSlice slice = vocabulary_slice(name, context.config, sizes);
  if (tied != nullptr) {
    loader.linear_of_table(&weight_, slice, tied->table());
  } else {
    loader.linear(&weight_, {slice}, false);
  }
  is_sharded_ = sizes.vocab_is_sharded;
}

void Head::forward(Backend& backend, Communicator& communicator, Tensor out, Tensor shard,
                   Tensor hidden) const {
  if (is_sharded_) {
    backend.linear(shard, hidden, *weight_);
    communicator.all_gather(out, shard);
  } else {
    backend.linear(out, hidden, *weight_);
  }
}

void add_and_norm(Step& step, const float* norm, float eps) {
  step.communicator.all_reduce_add_rms_norm(step.backend, step.x.hidden, step.x.residual,
                                            step.x.branch, norm, eps, 0);
}

void Attention::load(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     const AttentionOptions& options) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.communicator);
  const int64_t head_dim = config.head_dim;
  const int64_t width = config.num_attention_heads * head_dim;

  const MatrixSlice q = split_rows(name + ".q_proj", width, config.hidden_size, sizes);
  MatrixSlice k = MatrixSlice::whole(name + ".k_proj", config.num_key_value_heads * head_dim,
                                     config.hidden_size);
  k.row_begin = sizes.first_kv_head * head_dim;
  k.row_end = (sizes.first_kv_head + sizes.num_kv_heads) * head_dim;
  MatrixSlice v = k;
  v.name = name + ".v_proj";
  loader.linear(&qkv_proj_, {q, k, v}, options.qkv_bias);
  loader.linear(&o_proj_, {split_columns(name + ".o_proj", config.hidden_size, width, sizes)},
                options.output_bias);

  rope_.norm_eps = config.rms_norm_eps;
  rope_.rotary_dim = config.head_dim;
  if (options.qk_norm) {
    loader.vector(&rope_.q_norm, name + ".q_norm", head_dim);
    loader.vector(&rope_.k_norm, name + ".k_norm", head_dim);
  }
  params_.num_heads = sizes.num_heads;
  params_.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  params_.window = options.window;
}

void Attention::read(Step& step) const {
  step.backend.linear(step.x.qkv, step.x.hidden, *qkv_proj_);
}

void Attention::store(Step& step, const KvCache& cache, Tensor cos_sin) const {
  RopeParams rope = rope_;
  rope.cos_sin = cos_sin;
  step.backend.qk_norm_rope_store(step.x.qkv, params_.num_heads, rope, cache, step.batch);
}

void Attention::attend(Step& step, const KvCache& cache, Tensor cos_sin) const {
  RopeParams rope = rope_;
  rope.cos_sin = cos_sin;
  step.backend.store_and_attend(step.x.attention, step.x.qkv, rope, cache, params_, step.batch);
}

void Attention::project(Step& step) const {
  step.backend.linear(step.x.branch, step.x.attention, *o_proj_);
}

void Mlp::load(const ModelContext& context, WeightLoader& loader, const std::string& name,
               bool bias) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.communicator);
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  loader.linear(&gate_up_proj_,
                {split_rows(name + ".gate_proj", intermediate, hidden, sizes),
                 split_rows(name + ".up_proj", intermediate, hidden, sizes)},
                bias);
  loader.linear(&down_proj_, {split_columns(name + ".down_proj", hidden, intermediate, sizes)},
                bias);
  activation_ = parse_activation(config);
}

void Mlp::forward(Step& step) const {
  step.backend.linear(step.x.gate_up, step.x.hidden, *gate_up_proj_);
  step.backend.act_and_mul(step.x.mlp, step.x.gate_up, activation_);
  step.backend.linear(step.x.branch, step.x.mlp, *down_proj_);
}

}  // namespace nanovllm
