// A stack of layers computed with a backend's ops, one after the other. It is the CPU's program,
// and every fused path of a device is tested against it.
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
  // Of a recurrent layer, which has nothing of the three before.
  std::optional<GatedDeltaParams> delta;
  std::unique_ptr<LinearWeight> out;
  // Either experts, or gate_up, activation and down.
  std::unique_ptr<ExpertWeights> experts;
  std::unique_ptr<LinearWeight> gate_up;
  Activation activation = Activation::kSilu;
  std::unique_ptr<LinearWeight> down;
  float residual_scale = 1;
};

// Views of the scratch memory for one step of T tokens. After the attention of the last layer only
// the rows whose logits are wanted remain: T = num_logits from there on.
struct Activations {
  Tensor residual;  // [T, hidden_size] float32
  Tensor hidden;    // [T, hidden_size] act: what attention or MLP reads
  Tensor branch;    // [T, hidden_size] act: this rank's summand of what they add to the residual
  Tensor core_in;   // [T, features of `in`] act
  Tensor means;     // [T, 2] float32, of norms over all heads
  Tensor core_out;  // [T, features that `out` reads] act
  Tensor gate_up;   // [T, 2 width] act
  Tensor mlp;       // [T, width] act
};

// Whether a branch is summed over the ranks, added to the residual stream and normed in one op,
// all_reduce_add_rms_norm(): nothing may stand between.
bool is_one_sum_and_norm(bool has_after_norm, float residual_scale, bool has_next_norm);

class LayerProgram : public StackProgram {
 public:
  // Packs the weights on several threads. Throws what Backend::make_linear throws.
  LayerProgram(Backend& backend, const StackSpec& spec, const CompileLimits& limits);

  Tensor run(const ForwardBatch& batch, const LayerCaches& caches, Tensor residual) override;
  std::vector<PathChoice> plan() const override;
  int64_t weight_bytes() const override { return weight_bytes_; }
  std::vector<LayoutUse> weight_layouts() const override;

 protected:
  // What follows the attention of layer i: from core_out to the next layer's core_in or, after the
  // last layer, to hidden. Devices override it with fused kernels.
  virtual void tail(int i, Activations& x);
  const PackedLayer* next_of(int i) const {
    return i + 1 < std::ssize(layers_) ? &layers_[i + 1] : nullptr;
  }
  // How the weights are stored; layers that are alike and follow each other are one line.
  std::vector<PathChoice> weight_formats() const;
  // The norm at the beginning of layer i + 1, or the final one.
  const NormParams& next_norm(int i) const;

  Backend& backend_;
  std::vector<PackedLayer> layers_;
  NormParams final_norm_;  // no weight = a stack without one

 private:
  void pack(const StackSpec& spec, const CompileLimits& limits);
  void lay_out(const StackSpec& spec, const CompileLimits& limits);
  Activations activations(Tensor residual) const;
  // Gives core_in, core_out, gate_up and mlp the widths that they have in this layer.
  static void fit(Activations& x, const PackedLayer& layer);
  // core_in -> core_out of layer i; without `out`, only what later rows need is stored.
  void core(int i, const Activations& x, const LayerCaches& caches, const ForwardBatch& batch,
            bool needs_out);
  void mlp(const PackedLayer& layer, Activations& x);
  void add_and_norm(Activations& x, const NormParams& after, float scale, const NormParams& next);
  // Keeps those rows of the residual and of core_out whose logits are wanted.
  void gather_wanted_rows(Activations& x, const ForwardBatch& batch) const;

  std::vector<std::unique_ptr<Buffer>> memory_;
  Activations largest_;   // of the most tokens; the residual is the caller's
  Tensor kept_residual_;  // [max_num_tokens, hidden_size]
  int64_t weight_bytes_ = 0;
};

}  // namespace nanovllm
