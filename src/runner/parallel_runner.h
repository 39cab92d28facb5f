// Tensor parallelism: several runners, each with its share of the weights and with some of the KV
// heads, that compute each step together.
#pragma once

#include <functional>
#include <memory>

#include "base/progress.h"
#include "io/model_config.h"
#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "ops/communicator.h"
#include "runner/runner.h"

namespace nanovllm {

// What an engine runs on: a ModelRunner, or a ParallelRunner of tensor_parallel_size of them, whose
// `info` counts the bytes of all ranks. Throws as make_model_runner does, and Error(kUnsupported)
// when the machine has fewer devices than ranks or the model can't be shared by so many. All ranks
// advance the one `progress`: those that wait for one that hangs soon stand still too.
// load_draft, or null, loads a draft model and returns the bytes of a block of its KV cache: it is
// called once, on the thread of rank 0, when the weights of all ranks are there and before their KV
// caches are.
std::unique_ptr<Runner> make_runner(const ModelConfig& model, const EngineConfig& config,
                                    EngineInfo& info, Progress* progress = nullptr,
                                    const std::function<int64_t()>& load_draft = nullptr);
// Whether it will compute on GPUs. Throws what it throws where the machine has too few.
bool is_on_gpus(const EngineConfig& config);

// One thread per rank. Every rank gets the same input and draws the same tokens itself: all have
// the same logits, to the last bit, and random numbers depend on seed and position alone. So
// nothing is sent back to the ranks, and the results of rank 0 are those of all.
//
// If a rank throws, the others, which may wait for it in a collective op (ops/communicator.h), are
// released, and its error is thrown by this call and by every later one: the ranks' KV caches no
// longer agree. The destructor works then too. One thread calls all methods.
class ParallelRunner final : public Runner {
 public:
  using MakeRank = std::function<std::unique_ptr<Runner>(int rank)>;

  // Calls make_rank for each rank on that rank's thread, all at the same time.
  ParallelRunner(std::unique_ptr<CommunicatorGroup> group, const MakeRank& make_rank);
  ~ParallelRunner() override;

  int num_kvcache_blocks() const override;
  StatePoolSize state_pool() const override;
  std::span<const int> kv_windows() const override;
  int max_in_flight() const override;
  StepCost step_cost() const override;
  void submit(const StepInput& input) override;
  void draw(std::span<const SamplingRow> rows) override;
  StepOutput collect() override;
  void abandon() noexcept override;

 private:
  class Ranks;
  const std::unique_ptr<CommunicatorGroup> group_;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace nanovllm
