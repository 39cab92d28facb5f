#include "ops/stack_work.h"

#include "ops/forward_batch.h"

namespace nanovllm {
namespace {

double size_of_matrix(const Matrix& matrix) {
  return static_cast<double>(matrix.in_features()) * static_cast<double>(matrix.out_features());
}

double size_of_dense(const Dense& dense) {
  return size_of_matrix(dense.gate_up) + size_of_matrix(dense.down);
}

// Weights that a token meets on this rank, on average over the experts.
double active_weights(const Experts& experts) {
  double weights = size_of_matrix(experts.router) + size_of_matrix(experts.shared_gate);
  if (experts.shared) weights += size_of_dense(*experts.shared);
  double routed = 0;
  for (const Dense& expert : experts.experts) routed += size_of_dense(expert);
  const auto num_experts = static_cast<double>(experts.router.out_features());
  return weights + routed * experts.routing.num_active / num_experts;
}

void add_core(StackWork& work, const Attention& core, DType dtype) {
  // A product with a key and one with a value, for each head.
  const double attention = 4.0 * core.num_heads * core.head_dim;
  if (core.window > 0) {
    work.window_flops_per_token += attention * core.window;
  } else {
    work.flops_per_seen_token += attention;
    work.kv_bytes_per_seen_token +=
        2.0 * core.num_kv_heads * core.head_dim * static_cast<double>(size_of(dtype));
  }
}

// Two products with the state and a row's part of folding it; and with the chunk's rows before, of
// which there are half a chunk on average, two with keys and two with values.
void add_core(StackWork& work, const GatedDelta& core, DType) {
  const double head =
      3.0 * core.key_dim * core.value_dim + kStateChunk / 2.0 * 2 * (core.key_dim + core.value_dim);
  work.flops_per_token += 2 * head * core.num_value_heads;
}

}  // namespace

StackWork work_of(const StackSpec& spec, DType dtype) {
  StackWork work;
  for (const LayerSpec& layer : spec.layers) {
    const auto* dense = std::get_if<Dense>(&layer.ffn);
    const double ffn =
        dense != nullptr ? size_of_dense(*dense) : active_weights(std::get<Experts>(layer.ffn));
    work.flops_per_token += 2 * (size_of_matrix(layer.in) + size_of_matrix(layer.out) + ffn);
    std::visit([&](const auto& core) { add_core(work, core, dtype); }, layer.core);
  }
  return work;
}

}  // namespace nanovllm
