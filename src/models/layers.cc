#include "models/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

// Rows split: every rank computes a part of the output.
MatrixSlice split_rows(const std::string& name, int64_t rows, int64_t cols,
                       const ShardSizes& sizes) {
  MatrixSlice slice = MatrixSlice::whole(name, rows, cols);
  slice.row_begin = rows * sizes.rank / sizes.world_size;
  slice.row_end = rows * (sizes.rank + 1) / sizes.world_size;
  return slice;
}

// Slices of whole matrices that the file has as one, one below the other.
void stack(const std::string& name, std::initializer_list<MatrixSlice*> slices) {
  int64_t rows = 0;
  for (MatrixSlice* slice : slices) {
    slice->name = name;
    slice->row_begin += rows;
    slice->row_end += rows;
    rows += slice->rows;
  }
  for (MatrixSlice* slice : slices) slice->rows = rows;
}

// q, k, v and the gate, where the file has as many rows of the gate behind those of each head of q.
std::vector<MatrixSlice> with_gate(const MatrixSlice& q, const MatrixSlice& k, const MatrixSlice& v,
                                   int num_heads, int64_t head_dim) {
  std::vector<MatrixSlice> heads, gates;
  for (int h = 0; h < num_heads; ++h) {
    MatrixSlice head = q;
    head.rows = 2 * q.rows;
    head.row_begin = 2 * (q.row_begin + h * head_dim);
    head.row_end = head.row_begin + head_dim;
    heads.push_back(head);
    head.row_begin += head_dim;
    head.row_end += head_dim;
    gates.push_back(head);
  }
  heads.insert(heads.end(), {k, v});
  heads.insert(heads.end(), gates.begin(), gates.end());
  return heads;
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

// The matrices of the experts of a layer: each alone, or a stack a projection.
class ExpertSlices {
 public:
  ExpertSlices(const ModelContext& context, std::string prefix, const ExpertOptions& options,
               const ShardSizes& shard)
      : options_(options),
        shard_(shard),
        prefix_(std::move(prefix)),
        num_(context.config.experts.num),
        width_(context.config.experts.width),
        hidden_(context.config.hidden_size) {
    const auto has = [&](const std::string& part) {
      return context.weights.contains(prefix_ + part + ".weight");
    };
    is_fused_ = has(options.gate_up);
    is_stack_ = is_fused_ || has(options.gate);
  }

  std::vector<MatrixSlice> gate_and_up(int i) const {
    MatrixSlice gate =
        slice(split_rows, is_fused_ ? options_.gate_up : options_.gate, width_, hidden_, i);
    if (!is_fused_) return {gate, slice(split_rows, options_.up, width_, hidden_, i)};
    gate.rows = 2 * width_;
    if (options_.alternates) {
      gate.interleaved_head = gate.interleaved_rows = gate.rows;
    }
    MatrixSlice up = gate;
    up.row_begin += width_;
    up.row_end += width_;
    return {gate, up};
  }
  std::vector<MatrixSlice> down(int i) const {
    return {slice(split_columns, options_.down, hidden_, width_, i)};
  }

 private:
  template <typename Split>
  MatrixSlice slice(Split split, const std::string& part, int64_t rows, int64_t cols, int i) const {
    const std::string name = is_stack_ ? prefix_ + part : fmt::format("{}{}.{}", prefix_, i, part);
    MatrixSlice slice = split(name, rows, cols, shard_);
    if (is_stack_) {
      slice.stack_size = num_;
      slice.stack_index = i;
    }
    return slice;
  }

  const ExpertOptions& options_;
  const ShardSizes& shard_;
  const std::string prefix_;
  const int64_t num_, width_, hidden_;
  bool is_fused_ = false, is_stack_ = false;
};

// This rank's experts: a slice of each or some of them.
void load_routed(Experts& experts, const ModelContext& context, WeightLoader& loader,
                 const std::string& prefix, const ExpertOptions& options) {
  const ModelConfig& config = context.config;
  ShardSizes shard(config, context.backend);
  const int num_ranks = shard.world_size;
  int count = config.experts.num;
  if (context.expert_parallel) {
    require_divisible(config, "experts", config.experts.num, num_ranks);
    count /= num_ranks;
    experts.first = shard.rank * count;
    shard.rank = 0;
    shard.world_size = 1;
  } else {
    require_divisible(config, "rows of an expert", config.experts.width, num_ranks);
  }
  const ExpertSlices slices(context, prefix, options, shard);
  for (int i = 0; i < config.experts.num; ++i) {
    if (i < experts.first || i >= experts.first + count) {
      loader.look_for(slices.gate_and_up(i), options.has_biases);
      loader.look_for(slices.down(i), options.has_biases);
      continue;
    }
    experts.experts.push_back({.gate_up = loader.matrix(slices.gate_and_up(i), options.has_biases),
                               .activation = options.activation.value_or(parse_activation(config)),
                               .down = loader.matrix(slices.down(i), options.has_biases)});
  }
}

}  // namespace

void require_divisible(const ModelConfig& config, const char* what, int count, int num_ranks) {
  if (count % num_ranks == 0) return;
  throw_error(ErrorCode::kUnsupported,
              "{}: the {} {} can't be shared by tensor_parallel_size {}; choose one that divides "
              "them",
              config.model_dir, count, what, num_ranks);
}

MatrixSlice split_columns(const std::string& name, int64_t rows, int64_t cols,
                          const ShardSizes& sizes) {
  MatrixSlice slice = MatrixSlice::whole(name, rows, cols);
  slice.col_begin = cols * sizes.rank / sizes.world_size;
  slice.col_end = cols * (sizes.rank + 1) / sizes.world_size;
  return slice;
}

ShardSizes::ShardSizes(const ModelConfig& config, const Backend& backend)
    : rank(backend.rank()), world_size(backend.world_size()) {
  const int heads = config.num_attention_heads;
  const int kv_heads = config.num_key_value_heads;
  require_divisible(config, "attention heads", heads, world_size);
  if (world_size % kv_heads != 0) {
    require_divisible(config, "key-value heads", kv_heads, world_size);
  }
  require_divisible(config, "rows of intermediate_size", config.intermediate_size, world_size);
  num_heads = heads / world_size;
  num_kv_heads = std::max(1, kv_heads / world_size);
  first_kv_head = static_cast<int>(int64_t{kv_heads} * rank / world_size);
  vocab_is_sharded = world_size > 1 && config.vocab_size % world_size == 0;
  vocab_size = vocab_is_sharded ? config.vocab_size / world_size : config.vocab_size;
}

MatrixSlice vocabulary_slice(const std::string& name, const ModelConfig& config,
                             const ShardSizes& sizes) {
  return sizes.vocab_is_sharded ? split_rows(name, config.vocab_size, config.hidden_size, sizes)
                                : MatrixSlice::whole(name, config.vocab_size, config.hidden_size);
}

Norm load_norm(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t size, float offset) {
  Norm norm = {.weight = loader.values(name + ".weight", size), .eps = context.config.rms_norm_eps};
  for (float& weight : norm.weight) weight += offset;
  return norm;
}

void load_attention(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                    const std::string& name, const DecoderOptions& options, int window,
                    int rotary_table) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.backend);
  const int64_t head_dim = config.head_dim;
  const int64_t width = config.num_attention_heads * head_dim;

  const int64_t kv_width = config.num_key_value_heads * head_dim;
  MatrixSlice q = split_rows(name + ".q_proj", width, config.hidden_size, sizes);
  MatrixSlice k = MatrixSlice::whole(name + ".k_proj", kv_width, config.hidden_size);
  k.row_begin = sizes.first_kv_head * head_dim;
  k.row_end = (sizes.first_kv_head + sizes.num_kv_heads) * head_dim;
  if (options.turns_neighbours) {
    q.interleaved_head = k.interleaved_head = head_dim;
    q.interleaved_rows = k.interleaved_rows = config.rotated();
  }
  MatrixSlice v = MatrixSlice::whole(name + ".v_proj", kv_width, config.hidden_size);
  v.row_begin = k.row_begin;
  v.row_end = k.row_end;
  if (options.fused_qkv) stack(name + ".qkv_proj", {&q, &k, &v});
  std::vector<MatrixSlice> in = {q, k, v};
  if (options.attention_gate) in = with_gate(q, k, v, sizes.num_heads, head_dim);
  layer.in = loader.matrix(in, options.qkv_bias);
  layer.out = loader.matrix({split_columns(name + ".o_proj", config.hidden_size, width, sizes)},
                            options.output_bias);

  Attention attention = {.num_heads = sizes.num_heads,
                         .num_kv_heads = sizes.num_kv_heads,
                         .head_dim = config.head_dim,
                         .q_norm = {},
                         .k_norm = {},
                         .rotary_table = rotary_table,
                         .window = window,
                         .soft_cap = config.attention_soft_cap,
                         .sinks = {},
                         .has_gate = options.attention_gate};
  if (options.sinks) {
    const auto all = loader.values(name + ".sinks", config.num_attention_heads);
    const auto first = all.begin() + int64_t{sizes.num_heads} * sizes.rank;
    attention.sinks.assign(first, first + sizes.num_heads);
  }
  attention.norms_all_heads = options.qk_norm == QkNorm::kAllHeads;
  const auto head_norm = [&](const char* which, int64_t heads, int64_t first, int64_t count) {
    const int64_t size = attention.norms_all_heads ? heads * head_dim : head_dim;
    Norm norm = load_norm(context, loader, name + which, size, options.norm_offset);
    if (!attention.norms_all_heads) return norm;
    const auto begin = norm.weight.begin() + first * head_dim;
    norm.weight = {begin, begin + count * head_dim};
    return norm;
  };
  if (options.qk_norm != QkNorm::kNone) {
    attention.q_norm = head_norm(".q_norm", config.num_attention_heads,
                                 int64_t{sizes.rank} * sizes.num_heads, sizes.num_heads);
    attention.k_norm =
        head_norm(".k_norm", config.num_key_value_heads, sizes.first_kv_head, sizes.num_kv_heads);
  }
  const double scalar =
      options.query_scalar > 0 ? options.query_scalar : static_cast<double>(head_dim);
  attention.scale = static_cast<float>(1 / std::sqrt(scalar));
  layer.core = std::move(attention);
}

Dense load_mlp(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t width, bool bias, bool is_fused) {
  const ModelConfig& config = context.config;
  const ShardSizes sizes(config, context.backend);
  const int64_t hidden = config.hidden_size;
  MatrixSlice gate = split_rows(name + ".gate_proj", width, hidden, sizes);
  MatrixSlice up = split_rows(name + ".up_proj", width, hidden, sizes);
  if (is_fused) stack(name + ".gate_up_proj", {&gate, &up});
  return {.gate_up = loader.matrix({gate, up}, bias),
          .activation = parse_activation(config),
          .down = loader.matrix({split_columns(name + ".down_proj", hidden, width, sizes)}, bias)};
}

Experts load_experts(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     const ExpertOptions& options) {
  const ModelConfig& config = context.config;
  const ExpertsConfig& sizes = config.experts;
  const std::string router = name + "." + options.router;
  Experts experts;
  experts.router = loader.exact_matrix(MatrixSlice::whole(router, sizes.num, config.hidden_size),
                                       options.has_biases);
  experts.routing = {.score = options.score,
                     .num_groups = sizes.num_groups,
                     .num_active_groups = sizes.num_active_groups,
                     .num_active = sizes.num_active,
                     .renormalise = sizes.renormalise,
                     .scale = static_cast<float>(sizes.scale)};
  if (options.has_correction) {
    experts.routing.correction = loader.values(router + ".e_score_correction_bias", sizes.num);
  }
  load_routed(experts, context, loader, name + ".experts.", options);
  if (sizes.shared_width > 0) {
    const std::string shared = name + "." + options.shared;
    require_divisible(config, "rows of a shared expert", sizes.shared_width,
                      context.backend.world_size());
    experts.shared = load_mlp(context, loader, shared, sizes.shared_width, false, false);
    if (options.has_shared_gate) {
      experts.shared_gate =
          loader.exact_matrix(MatrixSlice::whole(shared + "_gate", 1, config.hidden_size), false);
    }
  }
  return experts;
}

}  // namespace nanovllm
