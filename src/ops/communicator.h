// What the ranks of a tensor-parallel group exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/rank_barrier.h"
#include "ops/backend.h"
#include "ops/tensor.h"

namespace nanovllm {

// One object a rank; calls are collective: every rank makes the same ones in the same order. Sums
// are taken in the order of the ranks and are the same bits on every rank. Like ops, calls may
// return before a device is done. A call throws Error(kInternal) when another rank has failed.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  // x becomes the sum of all ranks' x; act or float32.
  virtual void all_reduce(Tensor) {}
  // out[R, world_size * n] = the ranks' x[R, n] side by side. With one rank `out` may be `x`.
  virtual void all_gather(Tensor, Tensor) {}
  // Backend::add_rms_norm of the sum of all ranks' x, which is how every block of a layer ends: a
  // device may do it in one pass. x may be changed.
  virtual void all_reduce_add_rms_norm(Backend& backend, Tensor out, Tensor residual, Tensor x,
                                       const float* weight, float eps, float offset) {
    all_reduce(x);
    backend.add_rms_norm(out, residual, x, weight, eps, offset);
  }
  // Backend::layer_tail of a layer whose output and down projections give each rank a part of a
  // sum. All ranks return the same.
  virtual bool layer_tail(Backend& backend, Tensor out, Tensor residual, Tensor attention,
                          Tensor mlp, const LayerTail& tail) {
    return world_size() == 1 && backend.layer_tail(out, residual, attention, mlp, tail);
  }
  // Backend::launch of a graph that has recorded calls of this object.
  virtual void launch(Backend& backend, const Graph& graph) { backend.launch(graph); }
};

// The ranks themselves: threads of this process, each with a backend of its own. Made by
// make_communicator_group (backend/registry.h).
class CommunicatorGroup {
 public:
  // How long ranks look for each other before they sleep: longer than the ranks of a step are
  // apart, far shorter than a time slice.
  static constexpr std::chrono::microseconds kSpinTime{50};

  CommunicatorGroup(int world_size, bool may_spin);
  virtual ~CommunicatorGroup() = default;
  int world_size() const { return static_cast<int>(values_.size()); }

  // Each rank calls the following from its own thread, all of them the same ones in the same order.
  // They throw Error(kInternal) when another rank has failed.

  // This rank's end, for tensors of `backend`, which outlives the calls made on it.
  virtual std::unique_ptr<Communicator> join(int rank, Backend& backend) = 0;
  // The smallest of the values that the ranks bring.
  int64_t smallest(int rank, int64_t value);

  // A rank has failed: whoever waits for it, here or in a Communicator's call, is released and
  // throws, as does all that is called later. Any thread may call it.
  virtual void abort() { barrier_.abort(); }
  // Throws Error when the results of the calls so far are no good because a rank has failed, on its
  // device as well. To be called when the device is done with them.
  virtual void check() { barrier_.check(); }

 protected:
  RankBarrier barrier_;

 private:
  std::vector<int64_t> values_;  // [world_size] what the ranks bring
};

}  // namespace nanovllm
