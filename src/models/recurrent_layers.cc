// Reads the weights of recurrent layers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "models/layers.h"

namespace nanovllm {
namespace {

// This rank's heads: some key heads with the value heads that read them.
struct DeltaShard {
  DeltaShard(const ModelConfig& config, const Backend& backend) : sizes(config.recurrent) {
    const int num_ranks = backend.world_size();
    require_divisible(config, "key heads of recurrent layers", sizes.num_key_heads, num_ranks);
    if (num_ranks > 1 && sizes.key_heads_take_turns &&
        sizes.num_key_heads != sizes.num_value_heads) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: ranks can't share recurrent layers whose value heads take turns with key "
                  "heads, as in a GGUF file; use tensor_parallel_size 1 or the model's folder",
                  config.model_dir);
    }
    num_key_heads = sizes.num_key_heads / num_ranks;
    num_value_heads = sizes.num_value_heads / num_ranks;
    first_key_head = backend.rank() * num_key_heads;
    first_value_head = backend.rank() * num_value_heads;
  }

  const RecurrentConfig& sizes;
  int num_key_heads = 0, num_value_heads = 0;
  int first_key_head = 0, first_value_head = 0;

  // Of q, k and v, one below the other, this rank's parts: [begin, end).
  std::vector<std::pair<int64_t, int64_t>> channels() const {
    const int64_t keys = int64_t{sizes.num_key_heads} * sizes.key_dim;
    const int64_t key = int64_t{first_key_head} * sizes.key_dim;
    const int64_t value = 2 * keys + int64_t{first_value_head} * sizes.value_dim;
    const int64_t num_keys = int64_t{num_key_heads} * sizes.key_dim;
    return {{key, key + num_keys},
            {keys + key, keys + key + num_keys},
            {value, value + int64_t{num_value_heads} * sizes.value_dim}};
  }
  int64_t num_channels() const {
    return int64_t{2} * sizes.num_key_heads * sizes.key_dim +
           int64_t{sizes.num_value_heads} * sizes.value_dim;
  }
  // Rows of a matrix that has `width` for each value head.
  MatrixSlice value_rows(const std::string& name, int width, int64_t cols) const {
    MatrixSlice slice = MatrixSlice::whole(name, int64_t{sizes.num_value_heads} * width, cols);
    slice.row_begin = int64_t{first_value_head} * width;
    slice.row_end = slice.row_begin + int64_t{num_value_heads} * width;
    return slice;
  }
  std::vector<float> of_value_heads(const std::vector<float>& all) const {
    const auto first = all.begin() + first_value_head;
    return {first, first + num_value_heads};
  }
};

// [conv_width, channels of this rank] of NAME.conv1d, which has the taps of each channel together.
std::vector<float> load_conv(WeightLoader& loader, const std::string& name,
                             const DeltaShard& shard) {
  const int64_t width = shard.sizes.conv_width;
  std::vector<int64_t> shape = {shard.num_channels(), 1, width};
  if (shard.sizes.has_decay) shape = {shard.num_channels(), width};  // a GGUF file
  const std::vector<float> all = loader.values(name + ".conv1d.weight", shape);
  std::vector<float> taps;
  for (int64_t j = 0; j < width; ++j) {
    for (const auto& [begin, end] : shard.channels()) {
      for (int64_t c = begin; c < end; ++c) taps.push_back(all[static_cast<size_t>(c * width + j)]);
    }
  }
  return taps;
}

}  // namespace

void load_gated_delta(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                      const std::string& name) {
  const ModelConfig& config = context.config;
  const RecurrentConfig& sizes = config.recurrent;
  const DeltaShard shard(config, context.backend);
  const int64_t hidden = config.hidden_size;
  std::vector<MatrixSlice> in;
  for (const auto& [begin, end] : shard.channels()) {
    in.push_back(MatrixSlice::whole(name + ".in_proj_qkv", shard.num_channels(), hidden));
    in.back().row_begin = begin;
    in.back().row_end = end;
  }
  in.push_back(shard.value_rows(name + ".in_proj_z", sizes.value_dim, hidden));
  layer.in = loader.matrix(in, false);
  // What a state keeps and takes in depends on these few rows.
  for (const char* gate : {".in_proj_b", ".in_proj_a"}) {
    const Matrix rows = loader.exact_matrix(shard.value_rows(name + gate, 1, hidden), false);
    layer.in.pieces.insert(layer.in.pieces.end(), rows.pieces.begin(), rows.pieces.end());
  }
  layer.out = loader.matrix(
      {split_columns(name + ".out_proj", hidden, int64_t{sizes.num_value_heads} * sizes.value_dim,
                     ShardSizes(config, context.backend))},
      false);
  GatedDelta core = {.num_key_heads = shard.num_key_heads,
                     .num_value_heads = shard.num_value_heads,
                     .key_dim = sizes.key_dim,
                     .value_dim = sizes.value_dim,
                     .key_heads_take_turns = sizes.key_heads_take_turns,
                     .conv_width = sizes.conv_width};
  core.conv_weight = load_conv(loader, name, shard);
  core.decay = shard.of_value_heads(loader.values(name + ".A_log", sizes.num_value_heads));
  if (!sizes.has_decay) {
    for (float& decay : core.decay) decay = -std::exp(decay);
  }
  core.dt_bias = shard.of_value_heads(loader.values(name + ".dt_bias", sizes.num_value_heads));
  core.out_norm = load_norm(context, loader, name + ".norm", sizes.value_dim, 0);
  layer.core = std::move(core);
}

}  // namespace nanovllm
