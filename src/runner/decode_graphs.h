// Decode steps as graphs: recorded once per shape, then launched as a whole.
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

  // Runs `ops`, whose addresses must depend on the shape alone, and returns the logits that they
  // return. At the first step of a shape `ops` is called twice: once to run, which also chooses
  // kernels and allocates memory, and then, while the device computes that, to be recorded. Later
  // steps launch the recording and do not call it.
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
