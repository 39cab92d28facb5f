// Reads the weights of a layer's parts. Tensor parallelism is here: each part gets this rank's
// share of the weights. What attention or an MLP adds to the residual is only this rank's summand;
// the StackProgram adds up those of all ranks. The residual and its norms are complete, and the
// same on every rank.
#pragma once

#include <string>

#include "models/decoder.h"
#include "models/model.h"
#include "models/weight_loader.h"

namespace nanovllm {

// This rank's share of a model's sizes. Throws Error(kUnsupported) if so many ranks can't share the
// model.
struct ShardSizes {
  ShardSizes(const ModelConfig& config, const Backend& backend);

  int rank = 0;
  int world_size = 1;
  int num_heads = 0;
  int num_kv_heads = 0;
  // With more ranks than KV heads, neighbouring ranks hold the same head.
  int first_kv_head = 0;
  // false: the vocabulary is not divisible by the number of ranks, and every rank holds it whole.
  bool vocab_is_sharded = false;
  // Of this rank.
  int vocab_size = 0;
};

// Throws Error(kUnsupported) unless so many ranks can share so many of `what`.
void require_divisible(const ModelConfig& config, const char* what, int count, int num_ranks);

// Columns split: every rank multiplies its part of the input, and the products are summed.
MatrixSlice split_columns(const std::string& name, int64_t rows, int64_t cols,
                          const ShardSizes& sizes);

// This rank's rows of the embedding or the head.
MatrixSlice vocabulary_slice(const std::string& name, const ModelConfig& config,
                             const ShardSizes& sizes);

// The norm with weight NAME.weight + offset.
Norm load_norm(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t size, float offset);

// NAME.q_proj, k_proj, v_proj and o_proj: fills in `in`, `core` and `out` of a layer.
// window: tokens that a query sees, 0 = all. rotary_table: of StackSpec::rotary_tables.
void load_attention(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                    const std::string& name, const DecoderOptions& options, int window,
                    int rotary_table);

// NAME.in_proj_qkv, in_proj_z, in_proj_b and in_proj_a, conv1d, A_log, dt_bias, norm and out_proj,
// or what DeltaOptions::names says: fills in the same of a recurrent layer.
void load_gated_delta(LayerSpec& layer, const ModelContext& context, WeightLoader& loader,
                      const std::string& name, const DeltaOptions& options);

// NAME.gate_proj and up_proj, or one gate_up_proj, and down_proj:
// down(activation(gate(x)) * up(x)).
Dense load_mlp(const ModelContext& context, WeightLoader& loader, const std::string& name,
               int64_t width, bool bias, bool is_fused);

// NAME.gate, and NAME.experts.I.gate_proj, up_proj and down_proj of each expert, or
// NAME.experts.gate_proj and so on as stacks of all experts' matrices. Shared experts are loaded if
// the config has them.
Experts load_experts(const ModelContext& context, WeightLoader& loader, const std::string& name,
                     const ExpertOptions& options);

}  // namespace nanovllm
