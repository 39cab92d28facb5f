// The memory of a model's intermediate results, allocated once for its largest step.
#pragma once

#include <memory>

#include "models/layers.h"
#include "models/model.h"

namespace nanovllm {

class Workspace {
 public:
  // `has_lanes`: steps may be computed in halves.
  Workspace(const ModelContext& context, const ShardSizes& sizes, bool has_lanes);

  // Views for a step of num_tokens rows. Attention and MLP share memory: one is done with it
  // before the other begins.
  Activations activations(int num_tokens) const;
  // Of one half of the rows, so that both can be computed at once: lane 0 the first ones, lane 1
  // the rest. Up to max_lane_tokens(), 0 without lanes.
  Activations lane_activations(int lane, int num_tokens) const;
  int64_t max_lane_tokens() const { return 2 * second_.qkv.rows(); }
  // Of the step's residual and attention, keeps only the rows whose logits are wanted, and makes
  // all views that small.
  void keep_rows(Step& step) const;

  Tensor logits(int num_rows) const;        // [num_rows, vocab_size] float32
  Tensor logits_shard(int num_rows) const;  // [num_rows, vocab of this rank] float32

 private:
  std::unique_ptr<Buffer> memory_;
  Activations all_;     // for the largest step
  Activations second_;  // for lane 1: what is not all_'s
  Tensor kept_residual_;
  Tensor logits_;
  Tensor logits_shard_;
};

}  // namespace nanovllm
