// From a model folder to a runner that is ready for steps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "io/model_config.h"
#include "io/weight_store.h"
#include "models/model.h"
#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "ops/communicator.h"
#include "runner/decode_graphs.h"
#include "runner/runner.h"
#include "runner/step_batch.h"

namespace nanovllm {

// One rank's share of a model and of its KV cache. It becomes ready in two strokes, so that ranks
// can agree on the number of blocks between them: the constructor loads, allocate_kv_cache() ends.
// On a device steps are asynchronous: submit() enqueues one while another runs, and the tokens that
// this other one samples go from step to step on the device. Decode steps run as graphs there.
class ModelRunner final : public Runner {
 public:
  // Throws Error: kNotFound, kCorruptData, kUnsupported, kOutOfMemory.
  ModelRunner(const ModelConfig& model, const EngineConfig& config,
              std::unique_ptr<Backend> backend);
  ~ModelRunner() override;

  // How many blocks the config asks for or this rank has memory for. Throws as plan_kv_cache().
  int plan_kv_cache() const;
  // No step before this.
  void allocate_kv_cache(int num_blocks);
  // All but load_seconds.
  void describe(EngineInfo& info) const;

  int num_kvcache_blocks() const override { return num_kvcache_blocks_; }
  int max_in_flight() const override { return traits_.is_asynchronous ? 2 : 1; }
  void submit(const StepInput& input) override;
  StepOutput collect() override;
  void abandon() noexcept override;

 private:
  // What a step has from submit() to collect(). There are two: one runs while the next is laid out.
  struct Slot {
    std::unique_ptr<Buffer> staging;
    std::unique_ptr<StepBatch> batch;
    std::unique_ptr<Buffer> sampled_ids;  // [max_num_tokens] int32 on the device
    std::vector<std::unique_ptr<SamplingTicket>> tickets;
    std::vector<int> ticket_rows;
  };

  void load_model();
  void allocate_slots();
  void warm_up();
  StepInput largest_step(std::vector<int32_t>& zeros) const;
  void enqueue(const StepInput& input, Slot& slot, const Slot& previous);
  void sample(Slot& slot, const Slot& previous, int begin, const Tensor& logits);

  const ModelConfig model_config_;
  const EngineConfig config_;
  const DType dtype_;
  const int max_model_len_;
  const int max_num_tokens_;
  const size_t staging_size_;  // elements
  std::unique_ptr<Backend> backend_;
  const BackendTraits traits_;
  const int64_t free_at_start_;  // bytes
  int max_num_logits_ = 0;
  std::unique_ptr<WeightStore> weights_;  // mapped for as long as the model reads from it
  std::unique_ptr<Model> model_;
  std::vector<KvCacheGroup> kv_groups_;
  std::unique_ptr<Buffer> kv_cache_memory_;
  std::vector<KvCache> kv_caches_;  // [num_layers]
  int num_kvcache_blocks_ = 0;

  std::unique_ptr<Buffer> staging_;  // a step's integers on the device
  std::array<Slot, 2> slots_;
  // 64 bits: at a step a millisecond, 31 bits last 25 days.
  uint64_t num_submitted_ = 0;
  uint64_t num_collected_ = 0;
  std::optional<DecodeGraphs> graphs_;
};

// Loads one rank's share of the weights of `model` on the device that `config` names, sizes the KV
// cache and fills in all of `info`: max_model_len is config's, lowered to what the model was
// trained for, and num_kvcache_blocks what the runner holds. Throws Error: kNotFound, kCorruptData,
// kUnsupported, or kOutOfMemory with the bytes needed and free. With a group, every rank's thread
// calls this at once and all runners get the same number of blocks; the group outlives them. `info`
// speaks of this rank.
std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info, CommunicatorGroup* group = nullptr,
                                          int rank = 0);

}  // namespace nanovllm
