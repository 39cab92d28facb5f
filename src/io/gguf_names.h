// The names of a GGUF file's tensors, and how it has them otherwise than a Hugging Face folder.
// gguf-py's tensor_mapping.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

// What is not the same for all families.
struct GgufLayout {
  // The rows of a head where the file has those of q and k for a rotation of neighbours; otherwise
  // 0.
  int64_t interleaved_head = 0;
  // A layer's post_attention_layernorm is behind attention, not before the MLP.
  bool has_post_norms = false;
  // Of a folder: see ConfigRules::experts_are_in_order.
  bool has_experts_in_order = false;
};

// GGUF's name of a tensor: "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight". A
// name that it does not know stays as it is.
std::string gguf_tensor_name(std::string_view name, bool post_norms = false);

// Whether a tensor, by GGUF's name, is one of q or k.
bool is_interleaved(std::string_view tensor_name);

// Whether a tensor is a table of the rotary embedding, which is part of the config or can be
// computed from it.
bool is_rotary_table(std::string_view tensor_name);

// A matrix of one row, which files have as a vector.
bool is_matrix_of_one_row(std::string_view tensor_name);

}  // namespace nanovllm
