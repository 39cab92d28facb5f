#include "models/decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "models/layer_summary.h"
#include "models/layers.h"
#include "models/rope.h"

namespace nanovllm {
namespace {

bool has_window(const ModelConfig& config, const DecoderOptions& options, int i) {
  switch (options.windows) {
    case DecoderOptions::Windows::kNone:
      return false;
    case DecoderOptions::Windows::kAllLayers:
      return true;
    case DecoderOptions::Windows::kListedLayers:
      return config.sliding_layers.empty() || config.sliding_layers[i];
  }
  return false;
}

class Decoder final : public Model {
 public:
  Decoder(const ModelContext& context, const DecoderOptions& options);

  KvCacheSpec kv_cache_spec(int block_size) const override {
    return {sizes_.num_kv_heads, config_.head_dim, block_size, dtype_};
  }
  std::vector<StateGroup> state_groups() const override { return state_groups_; }
  int64_t num_parameters() const override { return num_parameters_; }
  int64_t num_active_parameters() const override { return num_active_parameters_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t mapped_weight_bytes() const override { return mapped_weight_bytes_; }
  std::vector<LayoutUse> weight_layouts() const override {
    std::vector<LayoutUse> uses = program_->weight_layouts();
    add_layouts_of(uses, *head_);
    return uses;
  }
  StackWork work() const override { return work_; }
  std::vector<std::string> describe_layers() const override { return layer_lines_; }
  std::vector<PathChoice> plan() const override;
  void forward(const ForwardBatch& batch, const LayerCaches& caches) override;
  Tensor logits(int begin, int end) override;

 private:
  LayerSpec layer(const ModelContext& context, const DecoderOptions& options, WeightLoader& loader,
                  int i) const;
  // Recurrent layers.
  void group_states(const StackSpec& spec);
  void add_rotary_tables(const ModelContext& context, const DecoderOptions& options,
                         StackSpec& spec) const;
  void allocate(const ModelContext& context);
  // Of the experts that a token does not go to.
  int64_t num_idle_parameters(const DecoderOptions& options) const;

  const ModelConfig& config_;
  Backend& backend_;
  const DType dtype_;
  const ShardSizes sizes_;
  std::vector<std::string> layer_lines_;  // for people
  std::vector<StateGroup> state_groups_;
  int64_t num_parameters_ = 0;
  int64_t num_active_parameters_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t mapped_weight_bytes_ = 0;
  StackWork work_;
  WeightStorage storage_;

  EmbeddingTable embedding_;  // [vocab of this rank, hidden_size]
  int32_t first_id_ = 0;      // of the embedding's rows
  std::unique_ptr<StackProgram> program_;
  // May be the embedding's.
  std::shared_ptr<const LinearWeight> head_;
  Tensor residual_;      // [max_num_tokens, hidden_size] float32
  Tensor logits_;        // [max_num_logits, vocab_size] float32
  Tensor logits_shard_;  // [max_num_logits, vocab of this rank], where it is sharded
  Tensor last_hidden_;   // [num_logits, hidden_size] act, of the last step
};

Decoder::Decoder(const ModelContext& context, const DecoderOptions& options)
    : config_(context.config),
      backend_(context.backend),
      dtype_(context.dtype),
      sizes_(context.config, context.backend) {
  WeightLoader loader(context);
  const MatrixSlice embedding = vocabulary_slice("model.embed_tokens", config_, sizes_);
  loader.table(&embedding_, embedding);
  embedding_.scale = options.embedding_scale;
  first_id_ = static_cast<int32_t>(embedding.row_begin);
  StackSpec spec = {
      .hidden_size = config_.hidden_size, .layers = {}, .final_norm = {}, .rotary_tables = {}};
  for (int i = 0; i < config_.num_hidden_layers; ++i) {
    spec.layers.push_back(layer(context, options, loader, i));
  }
  spec.final_norm =
      load_norm(context, loader, "model.norm", config_.hidden_size, options.norm_offset);
  // The head is linear: a factor of the logits may as well be one of what it multiplies.
  for (float& weight : spec.final_norm.weight) weight *= config_.logit_scale;
  if (config_.tie_word_embeddings) {
    loader.linear(&head_, embedding, &embedding_);
  } else {
    loader.linear(&head_, vocabulary_slice("lm_head", config_, sizes_));
  }
  backend_.check(spec);
  add_rotary_tables(context, options, spec);
  group_states(spec);
  layer_lines_ = summarise_layers(spec, config_);
  if (const int count = loader.num_prediction_layers(); count > 0) {
    layer_lines_.push_back(
        fmt::format("{}: multi-token prediction, not used", counted(count, "layer")));
  }
  work_ = work_of(spec, dtype_);
  storage_ = loader.finish([&] {
    program_ = backend_.compile(spec, {.dtype = dtype_,
                                       .max_num_tokens = context.max_num_tokens,
                                       .num_threads = context.num_loading_threads});
  });
  allocate(context);
  num_parameters_ = loader.num_parameters();
  num_active_parameters_ = num_parameters_ - num_idle_parameters(options);
  mapped_weight_bytes_ = loader.mapped_bytes();
  weight_bytes_ = mapped_weight_bytes_ + loader.weight_bytes() + program_->weight_bytes();
}

LayerSpec Decoder::layer(const ModelContext& context, const DecoderOptions& options,
                         WeightLoader& loader, int i) const {
  const std::string name = fmt::format("model.layers.{}", i);
  const auto norm = [&](const char* which) {
    if (which == nullptr) return Norm();
    return load_norm(context, loader, name + "." + which, config_.hidden_size, options.norm_offset);
  };
  const bool has_own_base =
      has_window(config_, options, i) && options.window_rope_theta.has_value();
  const bool turns = config_.unrotated_layers.empty() || !config_.unrotated_layers[i];
  const int unturned = options.window_rope_theta ? 2 : 1;  // see add_rotary_tables()
  LayerSpec layer;
  layer.residual_scale = config_.residual_scale;
  const bool is_recurrent = config_.recurrent.has_layer(i);
  NormNames norms = options.norms;
  if (is_recurrent && options.delta.norms) norms = *options.delta.norms;
  if (is_recurrent && options.delta.older_norms &&
      context.weights.contains(
          fmt::format("{}.{}.weight", name, options.delta.older_norms->before_attention))) {
    norms = *options.delta.older_norms;
  }
  layer.before_core = norm(norms.before_attention);
  if (is_recurrent) {
    load_gated_delta(layer, context, loader, name + ".linear_attn", options.delta);
  } else {
    load_attention(layer, context, loader, name + ".self_attn", options,
                   window_of_layer(config_, options, i), turns ? (has_own_base ? 1 : 0) : unturned);
  }
  layer.after_core = norm(norms.after_attention);
  layer.before_ffn = norm(norms.before_mlp);
  layer.after_ffn = norm(norms.after_mlp);
  if (options.experts && config_.experts.layers[i]) {
    layer.ffn =
        load_experts(context, loader, name + "." + options.experts->block, *options.experts);
  } else {
    layer.ffn = load_mlp(context, loader, name + ".mlp", config_.intermediate_size,
                         options.mlp_bias, options.fused_gate_up);
  }
  return layer;
}

void Decoder::group_states(const StackSpec& spec) {
  for (int i = 0; i < std::ssize(spec.layers); ++i) {
    const auto* core = std::get_if<GatedDelta>(&spec.layers[i].core);
    if (core == nullptr) continue;
    const StateSpec state = {.num_key_heads = core->num_key_heads,
                             .num_value_heads = core->num_value_heads,
                             .key_dim = core->key_dim,
                             .value_dim = core->value_dim,
                             .conv_width = core->conv_width,
                             .dtype = dtype_};
    const auto group = std::ranges::find(state_groups_, state, &StateGroup::spec);
    if (group != state_groups_.end()) {
      group->layers.push_back(i);
    } else {
      state_groups_.push_back({state, {i}});
    }
  }
}

std::vector<PathChoice> Decoder::plan() const {
  std::vector<PathChoice> choices = program_->plan();
  for (PathChoice& choice : backend_.linear_paths(*head_, DType::kFloat32)) {
    choice.part = "head";
    choices.push_back(std::move(choice));
  }
  return choices;
}

void Decoder::add_rotary_tables(const ModelContext& context, const DecoderOptions& options,
                                StackSpec& spec) const {
  const int positions = context.max_model_len;
  const int64_t bytes = int64_t{positions} * config_.head_dim *
                        static_cast<int64_t>(sizeof(float)) * (options.window_rope_theta ? 2 : 1);
  // A backend's refusal would not say which flag asks for so much.
  const int64_t needed = backend_.traits().shares_host_memory ? 2 * bytes : bytes;
  const MemoryInfo memory = backend_.memory();
  if (needed > memory.free_bytes) {
    throw_error(
        ErrorCode::kOutOfMemory,
        "the rotary table of max_model_len {} tokens needs {} bytes, but {} are free{}; lower "
        "max_model_len",
        positions, needed, memory.free_bytes, memory.limit);
  }
  const auto add = [&](const ModelConfig& config) {
    spec.rotary_tables.push_back(
        {rope_table(rope_frequencies(config, positions), positions), config.rotated()});
  };
  add(config_);
  if (options.window_rope_theta) {
    ModelConfig local = config_;
    local.rope_theta = *options.window_rope_theta;
    local.rope_scaling = {};
    add(local);
  }
  if (!config_.unrotated_layers.empty()) spec.rotary_tables.emplace_back();
}

int64_t Decoder::num_idle_parameters(const DecoderOptions& options) const {
  if (!options.experts) return 0;
  const ExpertsConfig& experts = config_.experts;
  const int64_t hidden = config_.hidden_size, width = experts.width;
  const int64_t biases = options.experts->has_biases ? 2 * width + hidden : 0;
  return std::ranges::count(experts.layers, true) * (experts.num - experts.num_active) *
         (3 * hidden * width + biases);
}

void Decoder::allocate(const ModelContext& context) {
  const auto add = [&](Tensor& tensor, int64_t rows, int64_t cols) {
    storage_.push_back(backend_.allocate(static_cast<size_t>(rows * cols) * sizeof(float)));
    tensor = Tensor(storage_.back()->data(), DType::kFloat32, {rows, cols});
  };
  add(residual_, context.max_num_tokens, config_.hidden_size);
  add(logits_, context.max_num_logits, config_.vocab_size);
  if (sizes_.vocab_is_sharded) add(logits_shard_, context.max_num_logits, sizes_.vocab_size);
}

void Decoder::forward(const ForwardBatch& batch, const LayerCaches& caches) {
  const Tensor residual = residual_.first_rows(batch.num_tokens);
  backend_.embedding(residual, batch.token_ids, embedding_, first_id_);
  if (sizes_.vocab_is_sharded) backend_.all_reduce(residual);
  last_hidden_ = program_->run(batch, caches, residual);
}

Tensor Decoder::logits(int begin, int end) {
  const Tensor out = logits_.first_rows(end - begin);
  const Tensor hidden = last_hidden_.slice_rows(begin, end);
  if (sizes_.vocab_is_sharded) {
    const Tensor shard = logits_shard_.first_rows(end - begin);
    backend_.linear(shard, hidden, *head_);
    backend_.all_gather(out, shard);
  } else {
    backend_.linear(out, hidden, *head_);
  }
  if (config_.final_soft_cap > 0) backend_.soft_cap(out, config_.final_soft_cap);
  return out;
}

}  // namespace

int window_of_layer(const ModelConfig& config, const DecoderOptions& options, int i) {
  return has_window(config, options, i) ? config.sliding_window : 0;
}

std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options) {
  const std::string& config_path = context.config.config_path;
  const ExpertsConfig& sizes = context.config.experts;
  if (options.experts && sizes.num == 0) {
    throw_error(ErrorCode::kCorruptData, "{}: the number of experts is missing", config_path);
  }
  if (options.experts && sizes.num_active > kMaxActiveExperts) {
    throw_error(ErrorCode::kUnsupported,
                "{}: a token goes to {} experts, only up to {} are supported", config_path,
                sizes.num_active, kMaxActiveExperts);
  }
  return std::make_unique<Decoder>(context, options);
}

}  // namespace nanovllm
