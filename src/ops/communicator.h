// What the ranks of a tensor-parallel group exchange.
#pragma once

#include "ops/tensor.h"

namespace nanovllm {

// One object a rank; calls are collective: every rank makes the same ones in the same order. Sums
// are the same bits on every rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  // x becomes the sum of all ranks' x; act or float32.
  virtual void all_reduce(Tensor) {}
  // out[R, world_size * n] = the ranks' x[R, n] side by side. With one rank `out` may be `x`.
  virtual void all_gather(Tensor, Tensor) {}
};

}  // namespace nanovllm
