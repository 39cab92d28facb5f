#include "io/recurrent_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/config_keys.h"

namespace nanovllm {
namespace {

constexpr int kAttentionInterval = 4;  // every nth layer

std::vector<bool> read_layers(const JsonFields& fields, int num_layers) {
  if (auto layers = read_layer_types(fields, "linear_attention", num_layers)) return *layers;
  const int64_t interval =
      fields.integer("full_attention_interval", 1, kMaxLayers).value_or(kAttentionInterval);
  return layers_but_every(static_cast<int>(interval), num_layers);
}

}  // namespace

void check_recurrent(const std::string& where, const RecurrentConfig& sizes) {
  if (sizes.num_key_heads < 1 || sizes.num_value_heads % sizes.num_key_heads != 0) {
    throw_error(ErrorCode::kCorruptData,
                "{}: recurrent layers have {} value heads, expected a multiple of their {} key "
                "heads",
                where, sizes.num_value_heads, sizes.num_key_heads);
  }
  if (sizes.key_dim < 1 || sizes.key_dim % 8 != 0 || sizes.value_dim % 8 != 0) {
    throw_error(ErrorCode::kUnsupported,
                "{}: heads of recurrent layers have {} and {} elements, only multiples of 8 are "
                "supported",
                where, sizes.key_dim, sizes.value_dim);
  }
  if (std::ranges::find(sizes.layers, false) == sizes.layers.end()) {
    throw_error(ErrorCode::kUnsupported, "{}: no layer is of attention, which is not supported",
                where);
  }
}

void read_recurrent(const JsonFields& fields, ModelConfig& config) {
  RecurrentConfig& sizes = config.recurrent;
  assign_if(sizes.num_key_heads, fields.integer("linear_num_key_heads", 1, kMaxSize));
  assign_if(sizes.num_value_heads, fields.integer("linear_num_value_heads", 1, kMaxSize));
  assign_if(sizes.key_dim, fields.integer("linear_key_head_dim", 1, 1 << 16));
  assign_if(sizes.value_dim, fields.integer("linear_value_head_dim", 1, 1 << 16));
  assign_if(sizes.conv_width, fields.integer("linear_conv_kernel_dim", 1, kMaxConvWidth));
  sizes.layers = read_layers(fields, config.num_hidden_layers);
  fields.find("full_attention_interval");  // layer_types say more
  check_recurrent(fields.where(), sizes);
  if (config.hidden_act != "silu") {  // also of what the convolutions give
    throw_error(ErrorCode::kUnsupported, "{}: hidden_act is not silu, which is not supported",
                fields.where());
  }
}

}  // namespace nanovllm
