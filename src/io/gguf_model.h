// Where a GGUF file differs from a Hugging Face folder: its keys and names, and the order of rows.
// Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; names: gguf-py's
// tensor_mapping.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/gguf.h"
#include "io/model_config.h"

namespace nanovllm {

// The config that the model's folder would give. Throws Error: kCorruptData, or kUnsupported naming
// an architecture or a kind of file that can't be loaded.
ModelConfig gguf_config(const Gguf& file);

// GGUF's name of a tensor: "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight". A
// name that it does not know stays as it is. A family with post-norms has its
// post_attention_layernorm behind attention, others before the MLP.
std::string gguf_tensor_name(std::string_view name, bool post_norms = false);
bool gguf_has_post_norms(const Gguf& file);

// The rows of a head where the file has those of q and k for a rotation of neighbours; otherwise 0.
int64_t gguf_interleaved_head(const Gguf& file);
// Whether a tensor, by GGUF's name, is one of those.
bool is_interleaved(std::string_view tensor_name);

// Whether a tensor is a table of the rotary embedding, which is part of the config or can be
// computed from it.
bool is_rotary_table(std::string_view tensor_name);

// A matrix of one row, which files have as a vector.
bool is_matrix_of_one_row(std::string_view tensor_name);

}  // namespace nanovllm
