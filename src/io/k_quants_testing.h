// A tiny model in K-quants, whose blocks of 256 columns no golden is wide enough for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "io/gguf_testing.h"

namespace nanovllm::testing {

// A scale and a minimum in half precision at the places that the block has them: with random codes
// and scales below them, elements spread by some hundredths.
struct KQuant {
  uint32_t type;
  size_t block_bytes;
  size_t scale_at;
  uint16_t scale;
  size_t minimum_at = 0;
  uint16_t minimum = 0;
};
constexpr KQuant kQ2K = {10, 84, 80, 0x1c00, 82, 0x1e00};  // 0.0039, 0.0059
constexpr KQuant kQ3K = {11, 110, 108, 0x1400};            // 0.00098
constexpr KQuant kQ4K = {12, 144, 0, 0x0900, 2, 0x1480};   // 0.00015, 0.0011
constexpr KQuant kQ5K = {13, 176, 0, 0x0500, 2, 0x1480};   // 0.00008, 0.0011
constexpr KQuant kQ6K = {14, 210, 208, 0x0280};            // 0.00004

inline std::string random_blocks(const KQuant& kind, int64_t num_blocks, std::mt19937& rng) {
  std::string bytes(static_cast<size_t>(num_blocks) * kind.block_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng());
  const auto put = [&](size_t at, uint16_t half) {
    bytes[at] = static_cast<char>(half & 255);
    bytes[at + 1] = static_cast<char>(half >> 8);
  };
  for (size_t at = 0; at < bytes.size(); at += kind.block_bytes) {
    put(at + kind.scale_at, kind.scale);
    if (kind.minimum != 0) put(at + kind.minimum_at, kind.minimum);
  }
  return bytes;
}

// Llama, of two layers. Of its attention's output a quarter of the 512 columns, and of its MLP's
// also a half of the 768, begin within a block. It has no vocabulary.
inline std::string k_quants_gguf() {
  constexpr int64_t kHidden = 256, kHead = 64, kHeads = 8, kKvHeads = 4, kInner = 768, kVocab = 400;
  GgufWriter writer;
  writer.add("general.architecture", std::string("llama"));
  const auto add = [&](const std::string& key, int64_t value) {
    writer.add("llama." + key, static_cast<uint32_t>(value));
  };
  add("block_count", 2);
  add("context_length", 512);
  add("embedding_length", kHidden);
  add("feed_forward_length", kInner);
  add("attention.head_count", kHeads);
  add("attention.head_count_kv", kKvHeads);
  add("attention.key_length", kHead);
  add("attention.value_length", kHead);
  writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.add("llama.rope.freq_base", 10000.0f);
  std::mt19937 rng(1);
  const auto matrix = [&](const std::string& name, const KQuant& kind, int64_t rows, int64_t cols) {
    writer.tensor(name + ".weight", kind.type, {rows, cols},
                  random_blocks(kind, rows * cols / 256, rng));
  };
  const std::vector<float> ones(kHidden, 1.0f);
  const auto norm = [&](const std::string& name) {
    writer.tensor(name + ".weight", GgufWriter::kF32, {kHidden},
                  {reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float)});
  };
  for (const bool is_first : {true, false}) {
    const std::string layer = is_first ? "blk.0." : "blk.1.";
    norm(layer + "attn_norm");
    // Pieces of two formats in one weight, as files in Q4_K_M have them.
    matrix(layer + "attn_q", kQ4K, kHeads * kHead, kHidden);
    matrix(layer + "attn_k", kQ4K, kKvHeads * kHead, kHidden);
    matrix(layer + "attn_v", is_first ? kQ6K : kQ4K, kKvHeads * kHead, kHidden);
    matrix(layer + "attn_output", is_first ? kQ4K : kQ2K, kHidden, kHeads * kHead);
    norm(layer + "ffn_norm");
    matrix(layer + "ffn_gate", is_first ? kQ5K : kQ3K, kInner, kHidden);
    matrix(layer + "ffn_up", is_first ? kQ5K : kQ3K, kInner, kHidden);
    matrix(layer + "ffn_down", is_first ? kQ6K : kQ2K, kHidden, kInner);
  }
  norm("output_norm");
  matrix("token_embd", kQ4K, kVocab, kHidden);
  matrix("output", kQ6K, kVocab, kHidden);
  return writer.bytes();
}

}  // namespace nanovllm::testing
