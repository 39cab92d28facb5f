#include "models/decoder.h"

#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "models/rope.h"
#include "models/workspace.h"

namespace nanovllm {
namespace {

struct DecoderLayer {
  const float* input_norm = nullptr;
  Attention attention;
  const float* post_attention_norm = nullptr;
  Mlp mlp;
};

class Decoder final : public Model {
 public:
  Decoder(const ModelContext& context, const DecoderOptions& options);

  std::vector<KvCacheGroup> kv_cache_groups(int block_size) const override {
    std::vector<int> layers(num_layers());
    std::iota(layers.begin(), layers.end(), 0);
    return {{{sizes_.num_kv_heads, config_.head_dim, block_size, dtype_}, std::move(layers)}};
  }
  int num_layers() const override { return static_cast<int>(layers_.size()); }
  int64_t num_parameters() const override { return num_parameters_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  void forward(const ForwardBatch& batch, std::span<const KvCache> kv_caches) override;
  Tensor logits(int begin, int end) override;

 private:
  void load(const ModelContext& context, const DecoderOptions& options);
  // A backend's refusal would not say which flag asks for so much.
  void check_rope_memory(int max_model_len) const;
  int64_t layer_bytes() const;  // of a layer's matrices
  // From the residual stream to the first layer's qkv.
  void enter_layers(Step& step) const;
  // All layers; in the end hidden holds the rows of the logits.
  void compute_layers(Step& step, std::span<const KvCache> kv_caches) const;
  // The same for a batch that wants it, one half beside the other.
  void compute_in_lanes(const ForwardBatch& batch, std::span<const KvCache> kv_caches) const;
  bool wants_lanes(const ForwardBatch& batch) const;
  // From a layer's attention to the next one's qkv, or to the hidden rows of the logits; at once
  // where the backend can.
  void finish_layer(Step& step, int i) const;
  bool finish_layer_at_once(Step& step, int i) const;

  const ModelConfig& config_;
  Backend& backend_;
  Communicator& communicator_;
  const DType dtype_;
  const ShardSizes sizes_;
  int64_t num_parameters_ = 0;
  int64_t weight_bytes_ = 0;
  int min_lane_tokens_ = 0;  // see Backend
  WeightStorage storage_;
  std::optional<Workspace> workspace_;

  Embedding embedding_;
  std::vector<DecoderLayer> layers_;
  const float* norm_ = nullptr;
  Head head_;
  Tensor cos_sin_;      // [max_model_len, head_dim]
  Tensor last_hidden_;  // [num_logits, hidden_size] act, of the last step
};

Decoder::Decoder(const ModelContext& context, const DecoderOptions& options)
    : config_(context.config),
      backend_(context.backend),
      communicator_(context.communicator),
      dtype_(context.dtype),
      sizes_(context.config, context.communicator),
      layers_(context.config.num_hidden_layers) {
  load(context, options);
}

void Decoder::load(const ModelContext& context, const DecoderOptions& options) {
  WeightLoader loader(context);
  embedding_.load(context, loader, "model.embed_tokens");
  for (int i = 0; i < num_layers(); ++i) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = layers_[i];
    const bool has_window = options.windows == DecoderOptions::Windows::kAllLayers ||
                            (options.windows == DecoderOptions::Windows::kListedLayers &&
                             (config_.sliding_layers.empty() || config_.sliding_layers[i]));
    loader.vector(&layer.input_norm, name + ".input_layernorm", config_.hidden_size);
    layer.attention.load(context, loader, name + ".self_attn",
                         {.qk_norm = options.qk_norm,
                          .qkv_bias = options.qkv_bias,
                          .output_bias = options.output_bias,
                          .window = has_window ? config_.sliding_window : 0});
    loader.vector(&layer.post_attention_norm, name + ".post_attention_layernorm",
                  config_.hidden_size);
    layer.mlp.load(context, loader, name + ".mlp", options.mlp_bias);
  }
  loader.vector(&norm_, "model.norm", config_.hidden_size);
  const bool is_tied = config_.tie_word_embeddings;
  head_.load(context, loader, is_tied ? "model.embed_tokens" : "lm_head",
             is_tied ? &embedding_ : nullptr);

  check_rope_memory(context.max_model_len);
  const float* cos_sin = nullptr;
  loader.constant(&cos_sin, rope_table(rope_frequencies(config_, context.max_model_len),
                                       context.max_model_len));
  if (sizes_.world_size == 1) min_lane_tokens_ = backend_.min_lane_tokens(layer_bytes());
  workspace_.emplace(context, sizes_, min_lane_tokens_ > 0);
  storage_ = loader.finish();
  cos_sin_ = Tensor(const_cast<float*>(cos_sin), DType::kFloat32,
                    {context.max_model_len, config_.head_dim});
  num_parameters_ = loader.num_parameters();
  weight_bytes_ = loader.weight_bytes();
}

int64_t Decoder::layer_bytes() const {
  const int64_t heads = int64_t{2} * sizes_.num_heads + int64_t{2} * sizes_.num_kv_heads;
  const int64_t columns = heads * config_.head_dim + int64_t{3} * sizes_.intermediate_size;
  return columns * config_.hidden_size * static_cast<int64_t>(size_of(dtype_));
}

void Decoder::check_rope_memory(int max_model_len) const {
  const int64_t bytes =
      int64_t{max_model_len} * config_.head_dim * static_cast<int64_t>(sizeof(float));
  const int64_t needed = backend_.is_cpu() ? 2 * bytes : bytes;  // while it is copied
  const MemoryInfo memory = backend_.memory();
  if (needed <= memory.free_bytes) return;
  throw_error(
      ErrorCode::kOutOfMemory,
      "the rotary table of max_model_len {} tokens needs {} bytes, but {} are free{}; lower "
      "max_model_len",
      max_model_len, needed, memory.free_bytes, memory.limit);
}

void Decoder::finish_layer(Step& step, int i) const {
  const DecoderLayer* next = i + 1 < num_layers() ? &layers_[i + 1] : nullptr;
  layers_[i].attention.project(step);
  add_and_norm(step, layers_[i].post_attention_norm, config_.rms_norm_eps);
  layers_[i].mlp.forward(step);
  add_and_norm(step, next != nullptr ? next->input_norm : norm_, config_.rms_norm_eps);
  if (next != nullptr) next->attention.read(step);
}

bool Decoder::finish_layer_at_once(Step& step, int i) const {
  const DecoderLayer& layer = layers_[i];
  const DecoderLayer* next = i + 1 < num_layers() ? &layers_[i + 1] : nullptr;
  const float eps = config_.rms_norm_eps;
  const LayerTail tail = {.output_proj = &layer.attention.output_proj(),
                          .norm = {layer.post_attention_norm, eps},
                          .gate_up_proj = &layer.mlp.gate_up_proj(),
                          .activation = layer.mlp.activation(),
                          .down_proj = &layer.mlp.down_proj(),
                          .next_norm = {next != nullptr ? next->input_norm : norm_, eps},
                          .next_proj = next != nullptr ? &next->attention.input_proj() : nullptr};
  return communicator_.layer_tail(backend_, next != nullptr ? step.x.qkv : step.x.hidden,
                                  step.x.residual, step.x.attention, step.x.mlp, tail);
}

void Decoder::enter_layers(Step& step) const {
  backend_.rms_norm(step.x.hidden, step.x.residual, layers_[0].input_norm, config_.rms_norm_eps, 0);
  layers_[0].attention.read(step);
}

void Decoder::forward(const ForwardBatch& batch, std::span<const KvCache> kv_caches) {
  NANOVLLM_CHECK(kv_caches.size() == layers_.size());
  Step step{backend_, communicator_, batch, workspace_->activations(batch.num_tokens)};
  embedding_.forward(step);
  if (wants_lanes(batch)) {
    compute_in_lanes(batch, kv_caches);
  } else {
    compute_layers(step, kv_caches);
  }
  last_hidden_ = step.x.hidden.first_rows(batch.num_logits);
}

bool Decoder::wants_lanes(const ForwardBatch& batch) const {
  return min_lane_tokens_ > 0 && batch.num_tokens >= min_lane_tokens_ &&
         batch.num_tokens <= workspace_->max_lane_tokens() &&
         batch.num_decodes == batch.num_tokens && batch.num_logits == batch.num_tokens;
}

void Decoder::compute_layers(Step& step, std::span<const KvCache> kv_caches) const {
  const ForwardBatch& batch = step.batch;
  enter_layers(step);
  for (int i = 0; i < num_layers(); ++i) {
    const DecoderLayer& layer = layers_[i];
    const bool is_last = i + 1 == num_layers();
    if (is_last && batch.num_logits == 0) {  // nothing but the KV is wanted
      layer.attention.store(step, kv_caches[i], cos_sin_);
      break;
    }
    layer.attention.attend(step, kv_caches[i], cos_sin_);
    // Of nothing but decodes, as many rows as tokens are all rows, in order.
    const bool keeps_all =
        batch.num_logits == batch.num_tokens && batch.num_decodes == batch.num_tokens;
    if (is_last && !keeps_all) workspace_->keep_rows(step);
    if (!finish_layer_at_once(step, i)) finish_layer(step, i);
  }
}

void Decoder::compute_in_lanes(const ForwardBatch& batch,
                               std::span<const KvCache> kv_caches) const {
  const int n = batch.num_tokens;
  const std::array batches = {decodes_of(batch, 0, n / 2), decodes_of(batch, n / 2, n)};
  std::array steps = {
      Step{backend_, communicator_, batches[0], workspace_->lane_activations(0, n)},
      Step{backend_, communicator_, batches[1], workspace_->lane_activations(1, n)}};
  const auto in_each_lane = [&](auto&& f) {
    for (const int lane : {0, 1}) {
      backend_.use_lane(lane);
      f(steps[lane]);
    }
  };
  backend_.begin_lanes();
  try {
    in_each_lane([&](Step& step) { enter_layers(step); });
    for (int i = 0; i < num_layers(); ++i) {
      in_each_lane([&](Step& step) {
        layers_[i].attention.attend(step, kv_caches[i], cos_sin_);
        if (!finish_layer_at_once(step, i)) finish_layer(step, i);
      });
    }
  } catch (...) {
    backend_.end_lanes();  // later steps wait for what is under way
    throw;
  }
  backend_.end_lanes();
}

Tensor Decoder::logits(int begin, int end) {
  const Tensor hidden = last_hidden_.slice_rows(begin, end);
  const Tensor out = workspace_->logits(end - begin);
  head_.forward(backend_, communicator_, out, workspace_->logits_shard(end - begin), hidden);
  return out;
}

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options) {
  return std::make_unique<Decoder>(context, options);
}

}  // namespace nanovllm
