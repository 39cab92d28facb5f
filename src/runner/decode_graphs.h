// Decode steps as graphs: recorded once a shape, then launched as one.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "ops/backend.h"
#include "runner/decode_buckets.h"

namespace nanovllm {

class DecodeGraphs {
 public:
  explicit DecodeGraphs(Backend& backend) : backend_(backend) {}

  // Runs `ops`, whose addresses depend on the shape alone, and returns the logits they return. The
  // first step of a shape runs op by op, so that kernels are chosen and memory is allocated, and is
  // recorded while the device computes it; later ones launch the recording.
  Tensor run(const DecodeShape& shape, const std::function<Tensor()>& ops);

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;
    Tensor logits;
  };

  Backend& backend_;
  std::map<DecodeShape, Entry> entries_;
};

}  // namespace nanovllm
