// A stack of layers made of a backend's simple ops: the CPU's program, and what every fused path
// of a device is tested against.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace nanovllm {

// A layer whose weights are packed and on the device.
struct PackedLayer {
  NormParams before_core, after_core, before_ffn, after_ffn;
  std::unique_ptr<LinearWeight> in;
  HeadsNormParams heads_norm;
  RopeParams rope;
  AttentionParams attention;
  std::unique_ptr<LinearWeight> out;
  std::unique_ptr<ExpertWeights> experts;  // or the following three
  std::unique_ptr<LinearWeight> gate_up;
  Activation activation = Activation::kSilu;
  std::unique_ptr<LinearWeight> down;
  float residual_scale = 1;
};

// Views of the scratch for one step of T tokens; behind the last core T = rows of logits.
struct Activations {
  Tensor residual;  // [T, hidden_size] float32
  Tensor hidden;    // [T, hidden_size] act: what a block reads
  Tensor branch;    // [T, hidden_size] act: this rank's part of what a block adds to the residual
  Tensor core_in;   // [T, features of `in`] act
  Tensor means;     // [T, 2] float32, of norms over all heads
  Tensor core_out;  // [T, features that `out` reads] act
  Tensor gate_up;   // [T, 2 width] act
  Tensor mlp;       // [T, width] act
};

class LayerProgram : public StackProgram {
 public:
  // Packs the weights on several threads. Throws what make_linear() throws.
  LayerProgram(Backend& backend, const StackSpec& spec, const CompileLimits& limits);

  Tensor run(const ForwardBatch& batch, std::span<const KvCache> caches, Tensor residual) override;
  std::vector<PathChoice> plan() const override;
  int64_t weight_bytes() const override { return weight_bytes_; }

 protected:
  // From core_out to the next layer's core_in or, behind the last layer, to hidden.
  virtual void tail(int i, Activations& x);
  const PackedLayer* next_of(int i) const {
    return i + 1 < std::ssize(layers_) ? &layers_[i + 1] : nullptr;
  }
  // How the weights lie in memory, neighbours alike as one.
  std::vector<PathChoice> weight_formats() const;
  // Of layer i + 1, or the final one.
  const NormParams& next_norm(int i) const;

  Backend& backend_;
  std::vector<PackedLayer> layers_;
  NormParams final_norm_;  // of the last stage

 private:
  void pack(const StackSpec& spec, const CompileLimits& limits);
  void lay_out(const StackSpec& spec, const CompileLimits& limits);
  Activations activations(Tensor residual) const;
  static void fit(Activations& x, const PackedLayer& layer);
  void mlp(const PackedLayer& layer, Activations& x);
  void add_and_norm(Activations& x, const NormParams& after, float scale, const NormParams& next);
  void gather_wanted_rows(Activations& x, const ForwardBatch& batch) const;

  std::vector<std::unique_ptr<Buffer>> memory_;
  Activations largest_;   // of the most tokens; the residual is the caller's
  Tensor kept_residual_;  // [max_num_tokens, hidden_size]
  int64_t weight_bytes_ = 0;
};

}  // namespace nanovllm
