#include "models/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

ShardSizes::ShardSizes(const ModelConfig& config, const Backend& backend)
    : rank(backend.rank()), world_size(backend.world_size()) {
  const int heads = config.num_attention_heads;
  const int kv_heads = config.num_key_value_heads;
  if (heads % world_size != 0) refuse_ranks(config, "attention heads", heads, world_size);
  if (kv_heads % world_size != 0 && world_size % kv_heads != 0) {
    refuse_ranks(config, "key-value heads", kv_heads, world_size);
  }
  if (config.intermediate_size % world_size != 0) {
    refuse_ranks(config, "rows of intermediate_size", config.intermediate_size, world_size);
  }
  for (const int width : {config.experts.width, config.experts.shared_width})
    if (width % world_size != 0) refuse_ranks(config, "rows of an expert", width, world_size);
  num_heads = heads / world_size;
  num_kv_heads = std::max(1, kv_heads / world_size);
  first_kv_head = static_cast<int>(int64_t{kv_heads} * rank / world_size);
  vocab_is_sharded = world_size > 1 && config.vocab_size % world_size == 0;
  vocab_size = vocab_is_sharded ? config.vocab_size / world_size : config.vocab_size;
}

void Embedding::load(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     float scale) {
  const ShardSizes sizes(context.config, context.backend);
  const MatrixSlice slice = vocabulary_slice(name, context.config, sizes);
  loader.table(&table_, slice);
  table_.scale = scale;
  first_id_ = static_cast<int32_t>(slice.row_begin);
  is_sharded_ = sizes.vocab_is_sharded;
}

void Embedding::forward(Backend& backend, Tensor residual, const int32_t* token_ids) const {
  backend.embedding(residual, token_ids, table_, first_id_);
  if (is_sharded_) backend.all_reduce(residual);
}

void Head::load(const ModelContext& context, WeightLoader& loader, const std::string& name,
                const Embedding* tied) {
  const ShardSizes sizes(context.config, context.backend);
  const MatrixSlice slice = vocabulary_slice(name, context.config, sizes);
  if (tied != nullptr) {
    loader.linear_of_table(&weight_, slice, tied->table());
  } else {
    loader.linear(&weight_, slice);
  }
  is_sharded_ = sizes.vocab_is_sharded;
}

void Head::forward(Backend& backend, Tensor out, Tensor shard, Tensor hidden) const {
  if (is_sharded_) {
    backend.linear(shard, hidden, *weight_);
    backend.all_gather(out, shard);
  } else {
    backend.linear(out, hidden, *weight_);
  }
}

Norm load_norm(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t size, float offset) {
  return {.weight = loader.vector(name, size, offset), .eps = context.config.rms_norm_eps};
}

void load_attention(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                    const std::string& name, const AttentionOptions& options) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.backend);
  const int64_t head_dim = config.head_dim;
  const int64_t width = config.num_attention_heads * head_dim;

  const MatrixSlice q = split_rows(name + ".q_proj", width, config.hidden_size, sizes);
  MatrixSlice k = MatrixSlice::whole(name + ".k_proj", config.num_key_value_heads * head_dim,
                                     config.hidden_size);
  k.row_begin = sizes.first_kv_head * head_dim;
  k.row_end = (sizes.first_kv_head + sizes.num_kv_heads) * head_dim;
  MatrixSlice v = k;
  v.name = name + ".v_proj";
  layer.in = loader.matrix({q, k, v}, options.qkv_bias);
  layer.out = loader.matrix({split_columns(name + ".o_proj", config.hidden_size, width, sizes)},
                            options.output_bias);

  Attention attention = {.num_heads = sizes.num_heads,
                         .num_kv_heads = sizes.num_kv_heads,
                         .head_dim = config.head_dim,
                         .q_norm = {},
                         .k_norm = {},
                         .rotary_table = options.rotary_table,
                         .window = options.window,
                         .soft_cap = options.soft_cap};
  if (options.has_sinks) {
    const auto all = loader.values(name + ".sinks", config.num_attention_heads);
    const auto first = all.begin() + int64_t{sizes.num_heads} * sizes.rank;
    attention.sinks.assign(first, first + sizes.num_heads);
  }
  if (options.qk_norm) {
    attention.q_norm = load_norm(context, loader, name + ".q_norm", head_dim, options.norm_offset);
    attention.k_norm = load_norm(context, loader, name + ".k_norm", head_dim, options.norm_offset);
  }
  const double scalar =
      options.query_scalar > 0 ? options.query_scalar : static_cast<double>(head_dim);
  attention.scale = static_cast<float>(1 / std::sqrt(scalar));
  layer.core = std::move(attention);
}

Dense load_mlp(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t width, bool bias) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.backend);
  const int64_t hidden = config.hidden_size;
  return {.gate_up = loader.matrix({split_rows(name + ".gate_proj", width, hidden, sizes),
                                    split_rows(name + ".up_proj", width, hidden, sizes)},
                                   bias),
          .activation = parse_activation(config),
          .down = loader.matrix({split_columns(name + ".down_proj", hidden, width, sizes)}, bias)};
}

Experts load_experts(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     const ExpertOptions& options) {
  const ModelConfig& config = context.config;
  const ExpertsConfig& sizes = config.experts;
  const ShardSizes shard(config, context.backend);
  const int64_t hidden = config.hidden_size;
  const std::string router = name + "." + options.router;
  const std::string prefix = name + ".experts.";
  const auto has = [&](const std::string& part) {
    return context.weights.contains(prefix + part + ".weight");
  };
  const bool is_fused = has(options.gate_up), is_stack = is_fused || has(options.gate);
  const auto slice = [&](auto split, const std::string& part, int64_t rows, int64_t cols, int i) {
    const std::string alone = fmt::format("{}{}.{}", prefix, i, part);
    MatrixSlice slice = split(is_stack ? prefix + part : alone, rows, cols, shard);
    if (is_stack) slice.stack_size = sizes.num, slice.stack_index = i;
    return slice;
  };
  const auto gate_and_up = [&](int i) -> std::vector<MatrixSlice> {
    MatrixSlice gate =
        slice(split_rows, is_fused ? options.gate_up : options.gate, sizes.width, hidden, i);
    if (!is_fused) return {gate, slice(split_rows, options.up, sizes.width, hidden, i)};
    gate.rows = 2 * sizes.width;
    MatrixSlice up = gate;
    up.row_begin += sizes.width;
    up.row_end += sizes.width;
    return {gate, up};
  };
  Experts experts;
  experts.router =
      loader.matrix({MatrixSlice::whole(router, sizes.num, hidden)}, options.has_biases);
  experts.routing = {.score = options.score,
                     .correction = {},
                     .num_groups = sizes.num_groups,
                     .num_active_groups = sizes.num_active_groups,
                     .num_active = sizes.num_active,
                     .renormalise = sizes.renormalise,
                     .scale = static_cast<float>(sizes.scale)};
  if (options.has_correction)
    experts.routing.correction = loader.values(router + ".e_score_correction_bias", sizes.num);
  for (int i = 0; i < sizes.num; ++i) {
    experts.experts.push_back(
        {.gate_up = loader.matrix(gate_and_up(i), options.has_biases),
         .activation = options.activation.value_or(parse_activation(config)),
         .down = loader.matrix({slice(split_columns, options.down, hidden, sizes.width, i)},
                               options.has_biases)});
  }
  if (sizes.shared_width > 0) {
    const std::string shared = name + "." + options.shared;
    experts.shared = load_mlp(context, loader, shared, sizes.shared_width, false);
    if (options.has_shared_gate)
      experts.shared_gate = loader.matrix({MatrixSlice::whole(shared + "_gate", 1, hidden)}, false);
  }
  return experts;
}

}  // namespace nanovllm
