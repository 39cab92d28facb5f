#include "io/gguf_names.h"

#include <fmt/format.h>

#include <cctype>
#include <span>
#include <utility>

namespace nanovllm {
namespace {

constexpr std::pair<const char*, const char*> kTensorNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.w2", "ffn_down_exps"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};
// Of layers with norms behind their blocks, too.
constexpr std::pair<const char*, const char*> kPostNormNames[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

// Takes the number out of the name of an expert, "mlp.experts.3.up_proj", and returns it: ".3"; or
// nothing.
std::string take_expert(std::string& name) {
  constexpr std::string_view kExperts = ".experts";
  const size_t at = name.find(kExperts), begin = at + kExperts.size();
  if (at == name.npos || begin + 1 >= name.size() || !std::isdigit(name[begin + 1])) return "";
  const size_t end = name.find('.', begin + 1);
  std::string number = name.substr(begin, end - begin);
  name.erase(begin, number.size());
  return number;
}

}  // namespace

std::string gguf_tensor_name(std::string_view name, bool post_norms) {
  constexpr std::string_view kLayers = "model.layers.";
  std::string prefix;
  std::string_view rest = name;
  if (rest.starts_with(kLayers)) {
    const size_t dot = rest.find('.', kLayers.size());
    if (dot == rest.npos) return std::string(name);
    prefix = fmt::format("blk.{}.", rest.substr(kLayers.size(), dot - kLayers.size()));
    rest.remove_prefix(dot + 1);
  }
  if (rest == "self_attn.sinks") return prefix + "attn_sinks.weight";
  if (rest == "mlp.gate.e_score_correction_bias") return prefix + "exp_probs_b.bias";
  if (rest == "linear_attn.A_log") return prefix + "ssm_a";
  if (rest == "linear_attn.dt_bias") return prefix + "ssm_dt.bias";
  const size_t end = rest.rfind('.');  // of .weight or .bias
  if (end == rest.npos) return std::string(name);
  std::string part(rest.substr(0, end));
  const std::string expert = take_expert(part);
  using Names = std::span<const std::pair<const char*, const char*>>;
  for (const Names names : {Names(kPostNormNames), Names(kTensorNames)}) {
    if (names.data() == kPostNormNames && !post_norms) continue;
    for (const auto& [ours, theirs] : names) {
      if (part != ours) continue;
      std::string found = prefix + theirs;
      // Each alone, as files of before April 2024 have them, an expert is no part of "ffn_up_exps".
      if (!expert.empty()) found.replace(found.rfind("_exps"), 5, expert);
      return found.append(rest.substr(end));
    }
  }
  return std::string(name);
}

bool is_interleaved(std::string_view tensor_name) {
  return tensor_name.find(".attn_q.") != tensor_name.npos ||
         tensor_name.find(".attn_k.") != tensor_name.npos;
}

bool is_matrix_of_one_row(std::string_view tensor_name) {
  return tensor_name.ends_with(".ffn_gate_inp_shexp.weight");
}

bool is_rotary_table(std::string_view tensor_name) {
  return tensor_name == "rope_freqs.weight" || tensor_name.starts_with("rope_factors_") ||
         tensor_name.find(".attn_rot_embd.") != tensor_name.npos;
}

}  // namespace nanovllm
