// Reads the weights of recurrent layers.
#include <algorithm>
#include <cmath>
#include <tuple>
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
    num_key_heads = sizes.num_key_heads / num_ranks;
    num_value_heads = sizes.num_value_heads / num_ranks;
    first_key_head = backend.rank() * num_key_heads;
    const bool in_turns = num_ranks > 1 && sizes.key_heads_take_turns;
    num_runs = in_turns ? static_cast<int>(group()) : 1;
    first_value_head = in_turns ? first_key_head : backend.rank() * num_value_heads;
  }

  const RecurrentConfig& sizes;
  int num_key_heads = 0, num_value_heads = 0;
  int first_key_head = 0, first_value_head = 0;
  // Where value heads take turns with key heads, this rank's lie in so many runs of neighbours,
  // each num_key_heads of all behind the one before; their order is of turns, too.
  int num_runs = 1;

  // Value heads that read one key head.
  int64_t group() const { return sizes.num_value_heads / sizes.num_key_heads; }
  // [begin, end) of each run of value heads, of what has `width` for each.
  std::vector<std::pair<int64_t, int64_t>> value_runs(int64_t width) const {
    std::vector<std::pair<int64_t, int64_t>> runs;
    for (int i = 0; i < num_runs; ++i) {
      const int64_t first = first_value_head + int64_t{i} * sizes.num_key_heads;
      runs.emplace_back(first * width, (first + num_value_heads / num_runs) * width);
    }
    return runs;
  }
  // Of q, k and v, one below the other, this rank's parts: [begin, end).
  std::vector<std::pair<int64_t, int64_t>> channels() const {
    const int64_t keys = int64_t{sizes.num_key_heads} * sizes.key_dim;
    const int64_t key = int64_t{first_key_head} * sizes.key_dim;
    const int64_t num_keys = int64_t{num_key_heads} * sizes.key_dim;
    std::vector<std::pair<int64_t, int64_t>> parts = {{key, key + num_keys},
                                                      {keys + key, keys + key + num_keys}};
    for (const auto& [begin, end] : value_runs(sizes.value_dim)) {
      parts.emplace_back(2 * keys + begin, 2 * keys + end);
    }
    return parts;
  }
  int64_t num_channels() const {
    return int64_t{2} * sizes.num_key_heads * sizes.key_dim +
           int64_t{sizes.num_value_heads} * sizes.value_dim;
  }
  // Columns of a matrix that has value_dim for each value head.
  MatrixSlice value_columns(const std::string& name, int64_t rows) const {
    const int64_t width = sizes.value_dim;
    MatrixSlice slice = MatrixSlice::whole(name, rows, sizes.num_value_heads * width);
    std::tie(slice.col_begin, slice.col_end) = value_runs(width)[0];
    slice.num_runs = num_runs;
    slice.run_stride = sizes.num_key_heads * width;
    return slice;
  }
  std::vector<float> of_value_heads(const std::vector<float>& all) const {
    std::vector<float> own;
    for (const auto& [begin, end] : value_runs(1)) {
      own.insert(own.end(), all.begin() + begin, all.begin() + end);
    }
    return own;
  }
};

// Rows [begin, end) of a matrix [rows, cols].
MatrixSlice rows_of(const std::string& name, int64_t rows, int64_t cols, int64_t begin,
                    int64_t end) {
  MatrixSlice slice = MatrixSlice::whole(name, rows, cols);
  slice.row_begin = begin;
  slice.row_end = end;
  return slice;
}

// Of a matrix that has `width` rows for each value head.
void add_value_rows(std::vector<MatrixSlice>& slices, const std::string& name,
                    const DeltaShard& shard, int64_t width, int64_t cols) {
  for (const auto& [begin, end] : shard.value_runs(width)) {
    slices.push_back(rows_of(name, shard.sizes.num_value_heads * width, cols, begin, end));
  }
}

// q, k, v and z; and b and a.
struct Projections {
  std::vector<MatrixSlice> wide, gates;
};

void add_wide_in_order(Projections& in, const std::string& name, const DeltaShard& shard,
                       int64_t hidden) {
  for (const auto& [begin, end] : shard.channels()) {
    in.wide.push_back(rows_of(name + ".in_proj_qkv", shard.num_channels(), hidden, begin, end));
  }
  add_value_rows(in.wide, name + ".in_proj_z", shard, shard.sizes.value_dim, hidden);
}

void add_gates_in_order(Projections& in, const std::string& name, const DeltaShard& shard,
                        int64_t hidden) {
  for (const char* gate : {".in_proj_b", ".in_proj_a"}) {
    add_value_rows(in.gates, name + gate, shard, 1, hidden);
  }
}

// Of each key head, rows [first, first + count) of the `rows_a_head` that NAME has.
void add_by_key_head(std::vector<MatrixSlice>& slices, const std::string& name,
                     const DeltaShard& shard, int64_t hidden, int64_t rows_a_head, int64_t first,
                     int64_t count) {
  for (int h = shard.first_key_head; h < shard.first_key_head + shard.num_key_heads; ++h) {
    const int64_t begin = h * rows_a_head + first;
    slices.push_back(
        rows_of(name, shard.sizes.num_key_heads * rows_a_head, hidden, begin, begin + count));
  }
}

void add_wide_by_key_head(Projections& in, const std::string& name, const DeltaShard& shard,
                          int64_t hidden) {
  const int64_t key = shard.sizes.key_dim;
  const int64_t value = shard.group() * shard.sizes.value_dim;
  int64_t first = 0;
  for (const int64_t count : {key, key, value, value}) {
    add_by_key_head(in.wide, name + ".in_proj_qkvz", shard, hidden, 2 * (key + value), first,
                    count);
    first += count;
  }
}

void add_gates_by_key_head(Projections& in, const std::string& name, const DeltaShard& shard,
                           int64_t hidden) {
  const int64_t group = shard.group();
  for (const int64_t first : {int64_t{0}, group}) {
    add_by_key_head(in.gates, name + ".in_proj_ba", shard, hidden, 2 * group, first, group);
  }
}

Projections projections_apart(const std::string& name, const DeltaShard& shard, int64_t hidden) {
  const RecurrentConfig& sizes = shard.sizes;
  Projections in;
  for (const char* part : {".q_proj", ".k_proj"}) {
    const int64_t begin = int64_t{shard.first_key_head} * sizes.key_dim;
    in.wide.push_back(rows_of(name + part, int64_t{sizes.num_key_heads} * sizes.key_dim, hidden,
                              begin, begin + int64_t{shard.num_key_heads} * sizes.key_dim));
  }
  for (const char* part : {".v_proj", ".g_proj"}) {
    add_value_rows(in.wide, name + part, shard, sizes.value_dim, hidden);
  }
  for (const char* part : {".b_proj", ".a_proj"}) {
    add_value_rows(in.gates, name + part, shard, 1, hidden);
  }
  return in;
}

Projections projections(const ModelContext& context, const std::string& name,
                        const DeltaShard& shard, DeltaOptions::Names names) {
  const int64_t hidden = context.config.hidden_size;
  Projections in;
  switch (names) {
    case DeltaOptions::Names::kUsual:
      add_wide_in_order(in, name, shard, hidden);
      add_gates_in_order(in, name, shard, hidden);
      break;
    case DeltaOptions::Names::kFusedByKeyHead:
      if (shard.sizes.has_decay && !context.weights.contains(name + ".in_proj_qkvz.weight")) {
        add_wide_in_order(in, name, shard, hidden);
      } else {
        add_wide_by_key_head(in, name, shard, hidden);
      }
      add_gates_by_key_head(in, name, shard, hidden);
      break;
    case DeltaOptions::Names::kApart:
      return projections_apart(name, shard, hidden);
  }
  return in;
}

// [conv_width, channels of this rank]; the checkpoint has the taps of each channel together.
std::vector<float> load_conv(WeightLoader& loader, const std::string& name, const DeltaShard& shard,
                             DeltaOptions::Names names) {
  const RecurrentConfig& sizes = shard.sizes;
  const int64_t width = sizes.conv_width;
  std::vector<float> all;
  const auto read = [&](const char* part, int64_t channels) {
    std::vector<int64_t> shape = {channels, 1, width};
    if (sizes.has_decay) shape = {channels, width};  // a GGUF file
    const std::vector<float> taps = loader.values(name + part + ".weight", shape);
    all.insert(all.end(), taps.begin(), taps.end());
  };
  if (names == DeltaOptions::Names::kApart) {
    read(".q_conv1d", int64_t{sizes.num_key_heads} * sizes.key_dim);
    read(".k_conv1d", int64_t{sizes.num_key_heads} * sizes.key_dim);
    read(".v_conv1d", int64_t{sizes.num_value_heads} * sizes.value_dim);
  } else {
    read(".conv1d", shard.num_channels());
  }
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
                      const std::string& name, const DeltaOptions& options) {
  const ModelConfig& config = context.config;
  const RecurrentConfig& sizes = config.recurrent;
  const DeltaShard shard(config, context.backend);
  const int64_t hidden = config.hidden_size;
  const bool is_apart = options.names == DeltaOptions::Names::kApart;
  const Projections in = projections(context, name, shard, options.names);
  layer.in = loader.matrix(in.wide, false);
  // What a state keeps and takes in depends on these few rows.
  for (const MatrixSlice& gate : in.gates) {
    const Matrix rows = loader.exact_matrix(gate, false);
    layer.in.pieces.insert(layer.in.pieces.end(), rows.pieces.begin(), rows.pieces.end());
  }
  layer.out = loader.matrix(
      {shard.value_columns(name + (is_apart ? ".o_proj" : ".out_proj"), hidden)}, false);
  GatedDelta core = {.num_key_heads = shard.num_key_heads,
                     .num_value_heads = shard.num_value_heads,
                     .key_dim = sizes.key_dim,
                     .value_dim = sizes.value_dim,
                     .key_heads_take_turns = sizes.key_heads_take_turns,
                     .conv_width = sizes.conv_width};
  core.conv_weight = load_conv(loader, name, shard, options.names);
  core.decay = shard.of_value_heads(loader.values(name + ".A_log", sizes.num_value_heads));
  if (!sizes.has_decay) {
    for (float& decay : core.decay) decay = -std::exp(decay);
  }
  core.dt_bias = shard.of_value_heads(loader.values(name + ".dt_bias", sizes.num_value_heads));
  core.beta_scale = options.beta_scale;
  core.out_norm =
      load_norm(context, loader, name + (is_apart ? ".o_norm" : ".norm"), sizes.value_dim, 0);
  if (options.eps > 0) core.out_norm.eps = options.eps;
  layer.core = std::move(core);
}

}  // namespace nanovllm
